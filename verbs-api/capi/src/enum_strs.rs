//! Names of enumeration values (the `*_str` functions). The words are those of rdma-core, because
//! programs print them and users search for them.

use core::ffi::{CStr, c_char, c_int};
use roxe_transport::wr::WC_STATUS_TEXTS;

/// Declares functions that name enumeration values: `function, name of other values: names from 0
/// on`.
macro_rules! names {
    ($($(#[$doc:meta])* $function:ident, $other:literal: $names:expr;)+) => {
        $(
            $(#[$doc])*
            pub(crate) extern "C" fn $function(value: c_int) -> *const c_char {
                const NAMES: &[&CStr] = &$names;
                usize::try_from(value).ok().and_then(|at| NAMES.get(at)).unwrap_or(&$other).as_ptr()
            }
        )+
    };
}

names! {
    /// `enum ibv_wc_status`; `man ibv_poll_cq`.
    ibv_wc_status_str, c"unknown":
        WC_STATUS_TEXTS;

    ibv_event_type_str, c"unknown":
        [c"CQ error", c"local work queue catastrophic error",
        c"invalid request local work queue error", c"local access violation work queue error",
        c"communication established", c"send queue drained", c"path migrated",
        c"path migration request error", c"local catastrophic error", c"port active", c"port error",
        c"LID change", c"P_Key change", c"SM change", c"SRQ catastrophic error", c"SRQ limit reached",
        c"last WQE reached", c"client reregistration", c"GID table change", c"WQ fatal"];

    /// `enum ibv_node_type`; `man ibv_event_type_str`.
    ibv_node_type_str, c"unknown":
        [c"unknown", c"InfiniBand channel adapter", c"InfiniBand switch", c"InfiniBand router",
        c"iWARP NIC", c"usNIC", c"usNIC UDP", c"unspecified"];

    /// `enum ibv_port_state`; `man ibv_event_type_str`.
    ibv_port_state_str, c"unknown":
        [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

    rdma_event_str, c"UNKNOWN EVENT":
        [c"RDMA_CM_EVENT_ADDR_RESOLVED", c"RDMA_CM_EVENT_ADDR_ERROR", c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR", c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE", c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE", c"RDMA_CM_EVENT_REJECTED", c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED", c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN", c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE", c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        c"RDMA_CM_EVENT_ADDRINFO_RESOLVED", c"RDMA_CM_EVENT_ADDRINFO_ERROR"];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: *const c_char) -> &'static str {
        // SAFETY: every function of this module returns one of its static C strings.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap()
    }

    #[test]
    fn any_value_has_a_name() {
        assert_eq!(text(ibv_wc_status_str(12)), "transport retry counter exceeded");
        assert_eq!(text(ibv_wc_status_str(-1)), "unknown");
        assert_eq!(text(ibv_wc_status_str(24)), "unknown");
        assert_eq!(text(ibv_port_state_str(4)), "active");
        assert_eq!(text(ibv_event_type_str(18)), "GID table change");
        assert_eq!(text(ibv_node_type_str(0)), "unknown");
        assert_eq!(text(rdma_event_str(9)), "RDMA_CM_EVENT_ESTABLISHED");
        assert_eq!(text(rdma_event_str(18)), "UNKNOWN EVENT");
    }
}
