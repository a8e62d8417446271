//! Path migration between two contexts of the device.
//!
//! The two paths are the IPv4 and the IPv6 address of the loopback interface; without IPv6 the
//! tests return early.

use super::*;
use crate::query::ibv_query_gid;
use std::process::Command;

const PATH_MIG: c_int = 6;
const PATH_MIG_ERR: c_int = 7;
const MIGRATED: c_int = 0;
const REARM: c_int = 1;
const ARMED: c_int = 2;
/// Environment variable of the process that loses packets of the first path from the second message
/// on.
const LOSSY: &str = "ROXE_TEST_LOSSY";

/// Two contexts, a connection between them over IPv4, and the alternate path over IPv6.
struct Paths {
    rigs: [Rig; 2],
    qps: [*mut ibv_qp; 2],
    alternate: ibv_ah_attr,
}

impl Paths {
    /// Returns a connection over IPv4; `None` without IPv6.
    fn new() -> Option<Self> {
        let rigs = [Rig::new(), Rig::new()];
        let alternate = ipv6_path(&rigs[0])?;
        let qps = [rigs[0].qp(RC), rigs[1].qp(RC)];
        connect(qps[0], qp_num(qps[1]));
        connect(qps[1], qp_num(qps[0]));
        Some(Self { rigs, qps, alternate })
    }

    /// Sets the alternate path at both ends.
    fn set_alternate(&self, path: ibv_ah_attr) {
        for qp in self.qps {
            let attr = ibv_qp_attr {
                alt_ah_attr: path,
                alt_port_num: 1,
                alt_timeout: 15,
                path_mig_state: REARM,
                ..ibv_qp_attr::default()
            };
            assert_eq!(modify_in_place(qp, attr, mask::ALT_PATH | mask::PATH_MIG_STATE), 0);
            assert_eq!(query(qp).path_mig_state, REARM);
        }
    }

    /// Writes a word to the other end; returns the status.
    fn write(&self, from: usize) -> u32 {
        let (rig, peer) = (&self.rigs[from], &self.rigs[1 - from]);
        let sges = [rig.sge(0, 1)];
        assert_eq!(rig.post_send(self.qps[from], &mut rdma_wr(1, WRITE, &sges, peer.addr(200), peer.rkey())).0, 0);
        rig.completions(1)[0].status
    }

    /// Arms migration at both ends.
    fn arm(&self) {
        self.set_alternate(self.alternate);
        assert_eq!([self.write(0), self.write(1)], [0, 0]);
        assert_eq!(self.states(), [ARMED; 2]);
    }

    fn states(&self) -> [c_int; 2] {
        self.qps.map(|qp| query(qp).path_mig_state)
    }

    /// Asserts that both ends have migrated and reported it.
    fn check_migrated(&self) {
        assert_eq!(self.states(), [MIGRATED; 2]);
        for (rig, qp) in self.rigs.iter().zip(self.qps) {
            // SAFETY: events of this kind carry a QP.
            assert_eq!(unsafe { rig.async_event(PATH_MIG).qp }, qp);
            let now = query(qp);
            assert_eq!(now.ah_attr.grh.dgid.raw, self.alternate.grh.dgid.raw);
            assert_eq!((now.ah_attr.grh.sgid_index, now.timeout), (self.alternate.grh.sgid_index, 15));
            assert_eq!(now.alt_ah_attr.is_global, 0, "the alternate path became the primary one");
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

/// Returns the path to the first IPv6 address of the device.
fn ipv6_path(rig: &Rig) -> Option<ibv_ah_attr> {
    let gid = |index: u8| {
        let mut gid = ibv_gid::default();
        // SAFETY: the rig keeps the context alive; the GID is a local variable.
        assert_eq!(unsafe { ibv_query_gid(rig.context, 1, index.into(), &raw mut gid) }, 0);
        gid
    };
    let is_ipv6 = |gid: ibv_gid| gid.raw != [0; 16] && gid.raw[..12] != loopback().grh.dgid.raw[..12];
    let Some(sgid_index) = (0..16).find(|&index| is_ipv6(gid(index))) else {
        eprintln!("skipped: the loopback interface has no IPv6 address");
        return None;
    };
    let mut path = loopback();
    (path.grh.dgid, path.grh.sgid_index) = (gid(sgid_index), sgid_index);
    Some(path)
}

/// Modifies attributes without the state.
fn modify_in_place(qp: *mut ibv_qp, mut attr: ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the test keeps the QP alive; the structure is a local variable.
    unsafe { ibv_modify_qp(qp, &raw mut attr, mask) }
}

#[test]
fn software_migrates_a_connection_and_back() {
    let Some(paths) = Paths::new() else { return };
    let to = |path_mig_state| ibv_qp_attr { path_mig_state, ..ibv_qp_attr::default() };
    assert_eq!(
        modify_in_place(paths.qps[0], to(REARM), mask::PATH_MIG_STATE),
        libc::EINVAL,
        "no alternate path is loaded"
    );
    paths.arm();
    assert_eq!(modify_in_place(paths.qps[0], to(ARMED), mask::PATH_MIG_STATE), libc::EINVAL, "the peer arms");
    assert_eq!(modify_in_place(paths.qps[0], to(MIGRATED), mask::PATH_MIG_STATE), 0);
    assert_eq!([paths.write(0), paths.write(1)], [0, 0]);
    paths.check_migrated();

    paths.set_alternate(loopback());
    assert_eq!([paths.write(0), paths.write(1)], [0, 0]);
    assert_eq!(paths.states(), [ARMED; 2]);
    assert_eq!(modify_in_place(paths.qps[1], to(MIGRATED), mask::PATH_MIG_STATE), 0);
    assert_eq!([paths.write(1), paths.write(0)], [0, 0]);
    for qp in paths.qps {
        assert_eq!(query(qp).ah_attr.grh.dgid.raw, loopback().grh.dgid.raw);
    }
}

#[test]
fn unexpected_migration_is_reported() {
    let Some(paths) = Paths::new() else { return };
    paths.arm();
    // The first QP connects anew as migrated, but still sends on the first path.
    let [astray, armed] = paths.qps;
    modify(astray, ibv_qp_attr::default(), STATE);
    connect_as(astray, ibv_qp_attr { timeout: 8, retry_cnt: 0, ..connect_attr(qp_num(armed)) });
    assert_eq!(paths.write(0), 12, "RETRY_EXC_ERR: the armed QP drops migrated packets of the first path");
    // SAFETY: events of this kind carry a QP.
    assert_eq!(unsafe { paths.rigs[1].async_event(PATH_MIG_ERR).qp }, armed);
    assert_eq!(query(armed).path_mig_state, ARMED);
}

/// Does nothing except in the child process of `exhausted_retries_migrate_the_connection`.
#[test]
fn child_process_with_loss() {
    if std::env::var_os(LOSSY).is_none() {
        return;
    }
    if let Some(paths) = Paths::new() {
        paths.arm();
        assert_eq!(paths.write(0), 0, "over the alternate path, after the retries over the first");
        assert_eq!(paths.write(1), 0);
        paths.check_migrated();
    }
    println!("done");
}

#[test]
fn exhausted_retries_migrate_the_connection() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "tests::migration::child_process_with_loss", "--nocapture", "--test-threads=1"]);
    let output = command.env(LOSSY, "1").env("ROXE_FAULTS", "drop from=127.0.0.1 msg=2..").output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    assert!(output_text.contains("done"), "{output_text}{}", String::from_utf8_lossy(&output.stderr));
}
