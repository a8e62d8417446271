//! Path migration as a C program drives it, between two openings of the device.
//!
//! The two paths are the IPv4 and the IPv6 address of the loopback interface; without IPv6 there is
//! nothing to try.

use super::*;
use crate::query::ibv_query_gid;
use std::process::Command;

const PATH_MIG: c_int = 6;
const PATH_MIG_ERR: c_int = 7;
const MIGRATED: c_int = 0;
const REARM: c_int = 1;
const ARMED: c_int = 2;
const ALT_PATH: c_int = 1 << 14;
const PATH_MIG_STATE: c_int = 1 << 18;
/// Set where packets over the first path get lost from the second message on.
const LOSSY: &str = "ROXE_TEST_LOSSY";

/// Two openings of the device, a connection between them, and the way over the other address.
struct Paths {
    rigs: [Rig; 2],
    qps: [*mut ibv_qp; 2],
    other: ibv_ah_attr,
}

impl Paths {
    /// A connection over IPv4; `None` without IPv6.
    fn new() -> Option<Self> {
        let rigs = [Rig::new(), Rig::new()];
        let other = over_ipv6(&rigs[0])?;
        let qps = [rigs[0].qp(RC), rigs[1].qp(RC)];
        connect(qps[0], number(qps[1]));
        connect(qps[1], number(qps[0]));
        Some(Self { rigs, qps, other })
    }

    /// Offers another way at both ends.
    fn rearm_over(&self, way: ibv_ah_attr) {
        for qp in self.qps {
            let attr = ibv_qp_attr {
                alt_ah_attr: way,
                alt_port_num: 1,
                alt_timeout: 15,
                path_mig_state: REARM,
                ..ibv_qp_attr::default()
            };
            assert_eq!(set(qp, attr, ALT_PATH | PATH_MIG_STATE), 0);
            assert_eq!(query(qp).path_mig_state, REARM);
        }
    }

    /// Writes a word from one end to the other; the status of the request.
    fn write(&self, from: usize) -> u32 {
        let (rig, peer) = (&self.rigs[from], &self.rigs[1 - from]);
        let sges = [rig.sge(0, 1)];
        assert_eq!(rig.post_send(self.qps[from], &mut rdma_wr(1, WRITE, &sges, peer.addr(200), peer.rkey())).0, 0);
        rig.completions(1)[0].status
    }

    /// Lets both ends hear that the other offers the same way.
    fn arm(&self) {
        self.rearm_over(self.other);
        assert_eq!([self.write(0), self.write(1)], [0, 0]);
        assert_eq!(self.states(), [ARMED; 2]);
    }

    fn states(&self) -> [c_int; 2] {
        self.qps.map(|qp| query(qp).path_mig_state)
    }

    /// Both ends say that they have gone over, and have.
    fn check_migrated(&self) {
        assert_eq!(self.states(), [MIGRATED; 2]);
        for (rig, qp) in self.rigs.iter().zip(self.qps) {
            // SAFETY: an event of a QP carries a QP.
            assert_eq!(unsafe { rig.async_event(PATH_MIG).qp }, qp);
            let now = query(qp);
            assert_eq!(now.ah_attr.grh.dgid.raw, self.other.grh.dgid.raw);
            assert_eq!((now.ah_attr.grh.sgid_index, now.timeout), (self.other.grh.sgid_index, 15));
            assert_eq!(now.alt_ah_attr.is_global, 0, "the other way is used up");
        }
    }
}

impl Drop for Paths {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            destroy(&self.qps);
        }
    }
}

/// The way to ourselves over the first IPv6 address of the device.
fn over_ipv6(rig: &Rig) -> Option<ibv_ah_attr> {
    let gid = |index: u8| {
        let mut gid = ibv_gid::default();
        // SAFETY: a living context and a whole GID.
        assert_eq!(unsafe { ibv_query_gid(rig.context, 1, index.into(), &raw mut gid) }, 0);
        gid
    };
    let is_ipv6 = |gid: ibv_gid| gid.raw != [0; 16] && gid.raw[..12] != loopback().grh.dgid.raw[..12];
    let Some(sgid_index) = (0..16).find(|&index| is_ipv6(gid(index))) else {
        eprintln!("skipped: the loopback interface has no IPv6 address");
        return None;
    };
    let mut way = loopback();
    (way.grh.dgid, way.grh.sgid_index) = (gid(sgid_index), sgid_index);
    Some(way)
}

/// Changes attributes without the state.
fn set(qp: *mut ibv_qp, mut attr: ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: a living QP and a whole structure.
    unsafe { ibv_modify_qp(qp, &raw mut attr, mask) }
}

#[test]
fn software_sends_a_connection_to_its_other_path_and_back() {
    let Some(paths) = Paths::new() else { return };
    let to = |path_mig_state| ibv_qp_attr { path_mig_state, ..ibv_qp_attr::default() };
    assert_eq!(set(paths.qps[0], to(REARM), PATH_MIG_STATE), libc::EINVAL, "no other way is loaded");
    paths.arm();
    assert_eq!(set(paths.qps[0], to(ARMED), PATH_MIG_STATE), libc::EINVAL, "the peer arms");
    assert_eq!(set(paths.qps[0], to(MIGRATED), PATH_MIG_STATE), 0);
    assert_eq!([paths.write(0), paths.write(1)], [0, 0]);
    paths.check_migrated();

    paths.rearm_over(loopback());
    assert_eq!([paths.write(0), paths.write(1)], [0, 0]);
    assert_eq!(paths.states(), [ARMED; 2]);
    assert_eq!(set(paths.qps[1], to(MIGRATED), PATH_MIG_STATE), 0);
    assert_eq!([paths.write(1), paths.write(0)], [0, 0]);
    for qp in paths.qps {
        assert_eq!(query(qp).ah_attr.grh.dgid.raw, loopback().grh.dgid.raw);
    }
}

#[test]
fn a_peer_that_wants_this_path_to_be_another_is_reported() {
    let Some(paths) = Paths::new() else { return };
    paths.arm();
    // The other end starts anew: it has migrated, it says, and still comes by the first path.
    let [astray, armed] = paths.qps;
    modify(astray, ibv_qp_attr::default(), STATE);
    connect_as(astray, ibv_qp_attr { timeout: 8, retry_cnt: 0, ..towards(number(armed)) });
    assert_eq!(paths.write(0), 12, "RETRY_EXC_ERR: such packets are not taken");
    // SAFETY: an event of a QP carries a QP.
    assert_eq!(unsafe { paths.rigs[1].async_event(PATH_MIG_ERR).qp }, armed);
    assert_eq!(query(armed).path_mig_state, ARMED);
}

/// Not a test of its own: needs the rules of the test below.
#[test]
fn inside_a_lossy_process() {
    if std::env::var_os(LOSSY).is_none() {
        return;
    }
    if let Some(paths) = Paths::new() {
        paths.arm();
        assert_eq!(paths.write(0), 0, "over the other path, after the retries over the first");
        assert_eq!(paths.write(1), 0);
        paths.check_migrated();
    }
    println!("done");
}

#[test]
fn retries_that_are_used_up_send_a_connection_to_its_other_path() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "tests::migration::inside_a_lossy_process", "--nocapture", "--test-threads=1"]);
    let output = command.env(LOSSY, "1").env("ROXE_FAULTS", "drop from=127.0.0.1 msg=2..").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("done"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
