//! The dynamic symbols of the shared object: name, version node and function of each.
//!
//! Each symbol is a label with a jump to the Rust function, and a `.symver` line with its public
//! name and version. Both must be in one object file, which an attribute on the Rust function
//! cannot guarantee across codegen units. `exports.map` repeats the names for the linker; a test
//! compares both with the finished library.
//!
//! Unsupported symbols that report errors in the same way share one function. It reads no
//! arguments, so callers may pass any number and types.

use crate::errno::{EOPNOTSUPP, set_errno};
use core::arch::global_asm;
use core::ffi::{c_int, c_long, c_void};

/// Defines the label of one symbol. `$at` is `@@@` for the default version of the name and `@` for
/// other versions; `$type` is the prefix of type names in this processor's assembler.
macro_rules! label {
    ($node:literal, $at:literal, $name:ident, $function:path, $jump:literal, $type:literal) => {
        global_asm!(
            concat!(".pushsection .text.roxe_export_", $node, stringify!($name), ",\"ax\",", $type, "progbits"),
            concat!(".globl roxe_export_", $node, stringify!($name)),
            concat!(".type roxe_export_", $node, stringify!($name), ",", $type, "function"),
            concat!("roxe_export_", $node, stringify!($name), ":"),
            concat!($jump, " {f}"),
            concat!(".size roxe_export_", $node, stringify!($name), ", . - roxe_export_", $node, stringify!($name)),
            concat!(".symver roxe_export_", $node, stringify!($name), ", ", stringify!($name), $at, $node),
            ".popsection",
            f = sym $function
        );
    };
}

/// Exports a function under a name and version node.
macro_rules! symbol {
    ($node:literal, $at:literal, $name:ident, $function:path) => {
        #[cfg(target_arch = "x86_64")]
        label!($node, $at, $name, $function, "jmp", "@");
        #[cfg(target_arch = "aarch64")]
        label!($node, $at, $name, $function, "b", "%");
    };
}

/// Exports a function under a name in every private node.
macro_rules! private_symbol {
    ($name:ident, $function:path) => {
        symbol!("IBVERBS_PRIVATE_34", "@", $name, $function);
        symbol!("IBVERBS_PRIVATE_57", "@", $name, $function);
        symbol!("IBVERBS_PRIVATE_59", "@", $name, $function);
        symbol!("IBVERBS_PRIVATE_64", "@", $name, $function);
        symbol!("IBVERBS_PRIVATE_65", "@@@", $name, $function);
    };
}

/// Exports functions under their own names: `"NODE", module: name name ...`.
macro_rules! export {
    ($($node:literal, $module:ident: $($name:ident)+;)+) => {
        $($(symbol!($node, "@@@", $name, crate::$module::$name);)+)+
    };
}

/// Exports unsupported names: `"NODE", function: name name ...`. The functions, at the end of this
/// file, report EOPNOTSUPP.
macro_rules! refuse {
    ($($node:literal, $answer:ident: $($name:ident)+;)+) => {
        $($(symbol!($node, "@@@", $name, crate::exports::$answer);)+)+

        #[cfg(test)]
        pub(crate) const REFUSED: &[&str] = &[$($(stringify!($name)),+),+];
    };
}

/// Exports unsupported names of the private nodes: `function: name name ...`.
macro_rules! refuse_private {
    ($($answer:ident: $($name:ident)+;)+) => {
        $($(private_symbol!($name, crate::exports::$answer);)+)+
    };
}

export! {
    "IBVERBS_1.0", device: ibv_get_sysfs_path ibv_read_sysfs_file;
    "IBVERBS_1.0", uverbs_convert: ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern ibv_copy_qp_attr_from_kern;
    "IBVERBS_1.0", rate: ibv_rate_to_mult mult_to_ibv_rate;
    "IBVERBS_1.0", event: ibv_create_comp_channel ibv_destroy_comp_channel;
    "IBVERBS_1.1", ah: ibv_create_ah ibv_create_ah_from_wc ibv_destroy_ah ibv_init_ah_from_wc;
    "IBVERBS_1.1", context: ibv_close_device ibv_open_device;
    "IBVERBS_1.1", cq: ibv_create_cq ibv_destroy_cq ibv_resize_cq;
    "IBVERBS_1.1", device: ibv_free_device_list ibv_get_device_guid ibv_get_device_list ibv_get_device_name;
    "IBVERBS_1.1", domain: ibv_alloc_pd ibv_dealloc_pd;
    "IBVERBS_1.1", event: ibv_ack_async_event ibv_ack_cq_events ibv_get_async_event ibv_get_cq_event;
    "IBVERBS_1.1", uverbs_convert: ibv_copy_ah_attr_from_kern;
    "IBVERBS_1.1", memory: ibv_dereg_mr ibv_dofork_range ibv_dontfork_range ibv_fork_init
        ibv_reg_mr ibv_rereg_mr;
    "IBVERBS_1.1", qp: ibv_attach_mcast ibv_create_qp ibv_destroy_qp ibv_detach_mcast ibv_modify_qp ibv_query_qp;
    "IBVERBS_1.1", query: ibv_query_device ibv_query_gid ibv_query_pkey ibv_query_port;
    "IBVERBS_1.1", rate: ibv_rate_to_mbps mbps_to_ibv_rate;
    "IBVERBS_1.1", srq: ibv_create_srq ibv_destroy_srq ibv_modify_srq ibv_query_srq;
    "IBVERBS_1.1", enum_strs: ibv_event_type_str ibv_node_type_str ibv_port_state_str ibv_wc_status_str;
    "IBVERBS_1.5", query: ibv_get_pkey_index;
    "IBVERBS_1.6", qp: ibv_qp_to_qp_ex;
    "IBVERBS_1.7", memory: ibv_reg_mr_iova;
    "IBVERBS_1.8", memory: ibv_reg_mr_iova2;
    "IBVERBS_1.9", device: ibv_get_device_index;
    "IBVERBS_1.10", qp: ibv_query_ece ibv_set_ece;
    "IBVERBS_1.10", context: ibv_import_device;
    "IBVERBS_1.10", memory: ibv_import_mr ibv_unimport_mr;
    "IBVERBS_1.10", domain: ibv_import_pd ibv_unimport_pd;
    "IBVERBS_1.11", query: _ibv_query_gid_ex _ibv_query_gid_table;
    "IBVERBS_1.12", memory: ibv_reg_dmabuf_mr;
    "IBVERBS_1.13", memory: ibv_import_dm ibv_is_fork_initialized ibv_unimport_dm;
    "IBVERBS_1.14", qp: ibv_query_qp_data_in_order;
    "IBVERBS_1.15", memory: ibv_reg_mr_ex;
    "IBVERBS_1.16", query: ibv_query_port_speed;
    "IBVERBS_1.17", memory: ibv_alloc_buf ibv_free_buf ibv_reg_buf_mr;
    "IBVERBS_1.18", memory: ibv_export_buf_dmabuf_fd;
    "RDMACM_1.0", enum_strs: rdma_event_str;
    "RDMACM_1.0", rdmacm: rdma_accept rdma_ack_cm_event rdma_bind_addr rdma_connect rdma_create_ep
        rdma_create_event_channel rdma_create_id rdma_create_qp rdma_create_qp_ex rdma_create_srq rdma_create_srq_ex
        rdma_destroy_ep rdma_destroy_event_channel rdma_destroy_id rdma_destroy_qp rdma_destroy_srq rdma_disconnect
        rdma_free_devices rdma_freeaddrinfo rdma_get_cm_event rdma_get_devices rdma_get_dst_port rdma_get_request
        rdma_get_src_port rdma_getaddrinfo rdma_join_multicast rdma_leave_multicast rdma_listen rdma_migrate_id
        rdma_notify rdma_reject rdma_resolve_addr rdma_resolve_route rdma_set_option;
    "RDMACM_1.0", rsocket: raccept rbind rclose rconnect rfcntl rgetpeername rgetsockname rgetsockopt riomap riounmap riowrite
        rlisten rpoll rread rreadv rrecv rrecvfrom rrecvmsg rselect rsend rsendmsg rsendto rsetsockopt rshutdown rsocket rwrite
        rwritev;
    "RDMACM_1.1", rdmacm: rdma_join_multicast_ex;
    "RDMACM_1.2", rdmacm: rdma_establish rdma_init_qp_attr;
    "RDMACM_1.3", rdmacm: rdma_get_remote_ece rdma_reject_ece rdma_set_local_ece;
    "RDMACM_1.4", rdmacm: rdma_query_addrinfo rdma_resolve_addrinfo rdma_write_cm_event;
    "RDMACM_1.5", rsocket: repoll_create repoll_ctl repoll_wait;
}

private_symbol!(ibv_query_gid_type, crate::query::ibv_query_gid_type);

refuse! {
    "IBVERBS_1.1", minus_one: ibv_resolve_eth_l2_from_gid;
    "IBVERBS_1.1", nothing: ibv_register_driver;
    "IBVERBS_1.15", null: ibv_alloc_dmah;
    "IBVERBS_1.15", status: ibv_dealloc_dmah;
    "IBVERBS_1.16", minus_one: ibv_dm_export_dmabuf_fd;
    "IBVERBS_1.18", null: ibv_create_comp_cntr;
    "IBVERBS_1.18", status: _ibv_query_comp_cntr_caps ibv_destroy_comp_cntr ibv_inc_comp_cntr ibv_inc_err_comp_cntr
        ibv_qp_attach_comp_cntr ibv_read_comp_cntr ibv_read_err_comp_cntr ibv_set_comp_cntr ibv_set_err_comp_cntr;
}

refuse_private! {
    null: _verbs_init_and_alloc_context ibv_dmabuf_heap_alloc ibv_wr_opcode_str verbs_open_device;
    nothing: __ioctl_final_num_attrs __verbs_log ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free verbs_init_cq
        verbs_register_driver_34 verbs_register_driver_57 verbs_register_driver_59 verbs_register_driver_64
        verbs_register_driver_65 verbs_set_ops verbs_uninit_context;
    minus_one: ibv_read_ibdev_sysfs_file;
    status: execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_dmah ibv_cmd_alloc_mw
        ibv_cmd_alloc_pd ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah ibv_cmd_create_comp_cntr
        ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2 ibv_cmd_create_flow
        ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex ibv_cmd_create_qp_ex2
        ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex ibv_cmd_create_wq
        ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah ibv_cmd_destroy_comp_cntr
        ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action
        ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq ibv_cmd_destroy_wq
        ibv_cmd_detach_mcast ibv_cmd_export_dmabuf_fd ibv_cmd_free_dm ibv_cmd_free_dmah ibv_cmd_get_context
        ibv_cmd_inc_comp_cntr ibv_cmd_inc_err_comp_cntr ibv_cmd_modify_cq ibv_cmd_modify_flow_action_esp
        ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq ibv_cmd_modify_wq ibv_cmd_open_qp
        ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv ibv_cmd_post_send ibv_cmd_post_srq_recv
        ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps ibv_cmd_query_context ibv_cmd_query_device_any
        ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_port_speed ibv_cmd_query_qp ibv_cmd_query_srq
        ibv_cmd_read_comp_cntr ibv_cmd_read_counters ibv_cmd_read_err_comp_cntr ibv_cmd_reg_dm_mr
        ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr ibv_cmd_reg_mr_ex ibv_cmd_req_notify_cq ibv_cmd_rereg_mr
        ibv_cmd_resize_cq ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr ibv_dmabuf_heap_cc_shared_init;
}

/// Exports the only variable, `bool verbs_allow_disassociate_destroy`, which provider libraries
/// read. It is always false.
macro_rules! variable {
    ($($node:literal, $at:literal;)+) => {
        $(global_asm!(
            ".pushsection .bss.roxe_export_verbs_allow_disassociate_destroy,\"aw\",%nobits",
            concat!(".globl roxe_export_disassociate_", $node),
            concat!(".type roxe_export_disassociate_", $node, ",%object"),
            concat!("roxe_export_disassociate_", $node, ": .zero 1"),
            concat!(".size roxe_export_disassociate_", $node, ", 1"),
            concat!(".symver roxe_export_disassociate_", $node, ", verbs_allow_disassociate_destroy", $at, $node),
            ".popsection",
        );)+
    };
}

variable! {
    "IBVERBS_PRIVATE_34", "@";
    "IBVERBS_PRIVATE_57", "@";
    "IBVERBS_PRIVATE_59", "@";
    "IBVERBS_PRIVATE_64", "@";
    "IBVERBS_PRIVATE_65", "@@@";
}

/// Stands for unsupported calls that return an errno value.
pub(crate) extern "C" fn status() -> c_int {
    EOPNOTSUPP.report()
}

/// Stands for unsupported calls that return a pointer, or NULL with `errno` set.
pub(crate) extern "C" fn null() -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    core::ptr::null_mut()
}

/// Stands for unsupported calls that return a number, or -1 with `errno` set. The type is wide
/// enough for `ssize_t` and `off_t`.
pub(crate) extern "C" fn minus_one() -> c_long {
    set_errno(libc::EOPNOTSUPP);
    -1
}

/// Stands for unsupported calls that cannot report an error, or whose empty result is 0.
pub(crate) extern "C" fn nothing() -> c_long {
    0
}

/// The loader calls this function when it loads the library.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = {
    extern "C" fn on_load() {
        roxe_check::on_load();
    }
    on_load
};
