//! Rate limits, static rates and port speed.

use super::*;
use crate::qp::modify_qp_rate_limit;
use crate::query::ibv_query_port_speed;
use crate::query::query_device_ex;

/// `IBV_QP_RATE_LIMIT`.
const RATE_LIMIT: c_int = 1 << 25;

/// Sets the rate limit of a QP, in kbit/s.
fn set_rate_limit(qp: *mut ibv_qp, rate_limit: u32, max_burst_sz: u32) -> c_int {
    let mut attr = ibv_qp_rate_limit_attr { rate_limit, max_burst_sz, typical_pkt_sz: 1024 };
    // SAFETY: the test keeps the QP alive; the structure is a local variable.
    unsafe { modify_qp_rate_limit(qp, &raw mut attr) }
}

#[test]
fn device_reports_pacing_limits() {
    let rig = Rig::new();
    let mut attr = MaybeUninit::<ibv_device_attr_ex>::uninit();
    // SAFETY: the rig keeps the context alive; the call fills the structure.
    let attr = unsafe {
        assert_eq!(query_device_ex(rig.context, ptr::null(), attr.as_mut_ptr(), size_of::<ibv_device_attr_ex>()), 0);
        attr.assume_init()
    };
    // Minimum and maximum rate in kbit/s, and the QP types: RC, UC, UD, raw packet, XRC.
    assert_eq!(attr.packet_pacing_caps, [1000, u32::MAX, 0x71c]);
    assert_eq!(attr.tso_caps, [0; 2]);
}

#[test]
fn rate_limit_is_set_queried_and_removed() {
    let rig = Rig::new();
    let ([a, b], fresh) = (rig.rc_pair(), rig.qp(RC));
    assert_eq!(set_rate_limit(fresh, 100_000, 0), libc::EINVAL, "RESET");
    assert_eq!((set_rate_limit(a, 999, 0), set_rate_limit(a, 0, 4096)), (libc::EINVAL, libc::EINVAL));
    assert_eq!((set_rate_limit(null_mut(), 1000, 0), set_rate_limit(foreign(), 1000, 0)), (libc::EINVAL, libc::EINVAL));
    // SAFETY: this test keeps the QP alive; the call checks for NULL.
    assert_eq!(unsafe { modify_qp_rate_limit(a, null_mut()) }, libc::EINVAL);
    assert_eq!((set_rate_limit(a, 100_000, 4096), query(a).rate_limit), (0, 100_000));
    modify(a, ibv_qp_attr { qp_state: RTS, rate_limit: 2_000_000, ..ibv_qp_attr::default() }, RATE_LIMIT);
    assert_eq!(query(a).rate_limit, 2_000_000);
    assert_eq!((set_rate_limit(a, 0, 0), query(a).rate_limit), (0, 0));
    destroy(&[a, b, fresh]);
}

#[test]
fn rate_limited_qp_paces_its_packets() {
    let mut rig = Rig::new();
    let [a, b] = rig.rc_pair();
    assert_eq!(set_rate_limit(a, 1000, 0), 0);
    rig.set(0, 7);
    // The WRITE has 8192 bytes: 8 packets of 1024 bytes, which with headers take 69 ms at 1000
    // kbit/s. The first two leave without delay, so the limit of the test is lower.
    let sges = [rig.sge(0, 512); 2];
    let mut wr = send_wr(1, WRITE, &sges);
    wr.wr = wr_union { rdma: wr_rdma { remote_addr: rig.addr(0), rkey: rig.rkey() } };
    let start = Instant::now();
    assert_eq!(rig.post_send(a, &mut wr).0, 0);
    assert_eq!(rig.completions(1)[0].status, 0);
    assert!(start.elapsed() >= Duration::from_millis(50), "{:?}", start.elapsed());
    destroy(&[a, b]);
}

#[test]
fn query_returns_known_static_rate_and_0_for_unknown() {
    let rig = Rig::new();
    let (a, b) = (rig.qp(RC), rig.qp(RC));
    let ah_attr = ibv_ah_attr { static_rate: 3, ..loopback() };
    connect_as(a, ibv_qp_attr { ah_attr, ..connect_attr(qp_num(b)) });
    assert_eq!(query(a).ah_attr.static_rate, 3, "10 Gbit/s");
    let ah_attr = ibv_ah_attr { static_rate: 1, ..loopback() };
    connect_as(b, ibv_qp_attr { ah_attr, ..connect_attr(qp_num(a)) });
    assert_eq!(query(b).ah_attr.static_rate, 0);
    destroy(&[a, b]);
}

#[test]
fn port_speed_matches_width_and_speed_codes() {
    let rig = Rig::new();
    let mut speed = 0;
    // SAFETY: the rig keeps the context alive; `speed` is a local variable; the call checks for
    // NULL.
    unsafe {
        // The loopback interface counts as 4 lanes of 25 Gbit/s.
        assert_eq!((ibv_query_port_speed(rig.context, 1, &raw mut speed), speed), (0, 1000));
        for port in [0, 2, 257] {
            assert_eq!(ibv_query_port_speed(rig.context, port, &raw mut speed), libc::EINVAL);
        }
        assert_eq!(ibv_query_port_speed(rig.context, 1, null_mut()), libc::EINVAL);
    }
}
