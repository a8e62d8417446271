//! Flows and counters. Raw packets need privileges: see `provider/device/tests/integration/raw.rs`
//! and rdma-core's suite.

use super::*;
use crate::flow::{attach_counters_point_flow, create_counters, destroy_counters, read_counters};
use crate::flow::{create_flow, destroy_flow};
use crate::query::query_device_ex;

fn flow_attr() -> ibv_flow_attr {
    let size = size_of::<ibv_flow_attr>() as u16;
    ibv_flow_attr { comp_mask: 0, flow_type: 0, size, priority: 0, num_of_specs: 0, port: 1, flags: 0 }
}

#[test]
fn flow_on_other_qp_types_is_refused() {
    let rig = Rig::new();
    let (ud, rc) = (rig.qp(UD), rig.qp(RC));
    let mut attr = flow_attr();
    // SAFETY: this test keeps the handles alive, and the calls look up the foreign ones; the
    // structure is a local variable.
    unsafe {
        for (qp, expected) in [(ud, libc::EOPNOTSUPP), (rc, libc::EINVAL), (foreign(), libc::EINVAL)] {
            assert!(create_flow(qp, &raw mut attr).is_null());
            assert_eq!(errno(), expected);
        }
        assert!(create_flow(ud, null_mut()).is_null());
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!(destroy_flow(foreign()), libc::EINVAL);
    }
    destroy(&[ud, rc]);
}

#[test]
fn counters_start_at_zero_and_refuse_unsupported_use() {
    let rig = Rig::new();
    let point = |counter_desc, index| ibv_counter_attach_attr { counter_desc, index, comp_mask: 0 };
    let (mut init, mut values) = (ibv_counters_init_attr { comp_mask: 0 }, [7u64; 4]);
    // SAFETY: this test keeps the handles alive, and the calls look up the foreign ones; no passed
    // count is longer than `values`.
    unsafe {
        let counters = create_counters(rig.context, &raw mut init);
        assert!(!counters.is_null());
        let attach =
            |mut attr: ibv_counter_attach_attr, flow| attach_counters_point_flow(counters, &raw mut attr, flow);
        assert_eq!((attach(point(0, 2), null_mut()), attach(point(1, 1), null_mut())), (0, 0));
        assert_eq!(attach(point(2, 0), null_mut()), libc::EOPNOTSUPP);
        assert_eq!(attach(ibv_counter_attach_attr { comp_mask: 1, ..point(0, 0) }, null_mut()), libc::EINVAL);
        assert_eq!(attach(point(0, 0), foreign()), libc::EOPNOTSUPP);
        assert_eq!(attach_counters_point_flow(counters, null_mut(), null_mut()), libc::EINVAL);
        assert_eq!(read_counters(counters, values.as_mut_ptr(), 4, 1), 0);
        assert_eq!(values, [0; 4]);
        assert_eq!(read_counters(counters, values.as_mut_ptr(), 2, 0), libc::EINVAL);
        assert_eq!(read_counters(counters, values.as_mut_ptr(), 4, 2), libc::EINVAL);
        assert_eq!(read_counters(counters, null_mut(), 4, 0), libc::EINVAL);
        assert_eq!(destroy_counters(counters), 0);
        assert_eq!(destroy_counters(counters), libc::EINVAL);
        init.comp_mask = 1;
        assert!(create_counters(rig.context, &raw mut init).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
    }
}

#[test]
fn raw_packet_capabilities_do_not_depend_on_rights() {
    let rig = Rig::new();
    let mut attr = MaybeUninit::<ibv_device_attr_ex>::uninit();
    // SAFETY: the rig keeps the context alive; the structure is a local variable.
    let attr = unsafe {
        assert_eq!(query_device_ex(rig.context, ptr::null(), attr.as_mut_ptr(), size_of::<ibv_device_attr_ex>()), 0);
        attr.assume_init()
    };
    // RAW_MULTI, RAW_IP_CSUM and MANAGED_FLOW_STEERING; IBV_RAW_PACKET_CAP_IP_CSUM.
    let flags = 1 << 3 | 1 << 26 | 1 << 29;
    assert_eq!(attr.orig_attr.device_cap_flags & flags, flags);
    assert!(attr.orig_attr.max_raw_ethy_qp > 0 && attr.raw_packet_caps == 1 << 2);
}
