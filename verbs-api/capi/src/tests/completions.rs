//! Completion queues: moderation, resizing under load, timestamps of completions.

use super::events::{get_cq_event, set_nonblocking};
use super::*;
use crate::cq::{create_cq_ex, ibv_resize_cq, modify_cq};
use crate::event::ibv_ack_cq_events;
use crate::query::{query_device_ex, query_rt_values};
use core::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

/// `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP` and `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK`.
const WC_FLAGS_TIMES: u64 = 1 << 7 | 1 << 11;

fn moderate(rig: &Rig, attr_mask: u32, cq_count: u16, cq_period: u16) -> c_int {
    let mut attr = ibv_modify_cq_attr { attr_mask, moderate: ibv_moderate_cq { cq_count, cq_period } };
    // SAFETY: the rig keeps the CQ alive; the structure is a local variable.
    unsafe { modify_cq(rig.cq, &raw mut attr) }
}

fn arm(rig: &Rig) {
    // SAFETY: the rig keeps the CQ alive.
    assert_eq!(unsafe { rig.ops().req_notify_cq.unwrap()(rig.cq, 0) }, 0);
}

/// Posts a WRITE of one word to `a` and waits until it completes.
fn write(rig: &Rig, a: *mut ibv_qp) {
    let sges = [rig.sge(0, 1)];
    assert_eq!(rig.post_send(a, &mut rdma_wr(1, WRITE, &sges, rig.addr(200), rig.rkey())).0, 0);
    assert_eq!(rig.completions(1)[0].status, 0);
}

#[test]
fn cq_moderation_refuses_undefined_attributes() {
    let rig = Rig::new();
    let mut attr = MaybeUninit::<ibv_device_attr_ex>::zeroed();
    // SAFETY: the rig keeps the context alive; the call fills the structure, whose fields are
    // numbers.
    let caps = unsafe {
        assert_eq!(query_device_ex(rig.context, ptr::null(), attr.as_mut_ptr(), size_of::<ibv_device_attr_ex>()), 0);
        attr.assume_init().cq_mod_caps
    };
    assert_eq!(caps, [u16::MAX; 2]);
    assert_eq!(moderate(&rig, 1, caps[0], caps[1]), 0);
    assert_eq!(moderate(&rig, 0, 0, 0), 0, "nothing to change");
    assert_eq!(moderate(&rig, 2, 1, 1), libc::EINVAL);
    // SAFETY: the call looks the handle up and checks for NULL before it follows a pointer.
    unsafe {
        assert_eq!(modify_cq(foreign(), null_mut()), libc::EINVAL);
        assert_eq!(modify_cq(rig.cq, null_mut()), libc::EINVAL);
    }
}

#[test]
fn moderated_cq_reports_several_completions_by_one_event() {
    let rig = Rig::new();
    let [a, b] = rig.rc_pair();
    // SAFETY: the rig keeps the channel alive.
    unsafe { set_nonblocking((*rig.channel).fd) };
    let period = u16::MAX;
    assert_eq!(moderate(&rig, 1, 3, period), 0);
    let mut is_checked = false;
    while !is_checked {
        let start = Instant::now();
        arm(&rig);
        write(&rig, a);
        write(&rig, a);
        let early = get_cq_event(&rig).0;
        // If the machine took longer than the period, an event after two completions is legal, and
        // the loop repeats.
        if start.elapsed() < Duration::from_micros(period.into()) {
            assert_eq!((early, errno()), (-1, libc::EAGAIN), "two completions of three");
            is_checked = true;
        }
        write(&rig, a);
        if early == -1 {
            // SAFETY: the rig keeps the channel alive.
            assert!(is_readable(unsafe { (*rig.channel).fd }, TIMEOUT));
            assert_eq!(get_cq_event(&rig), (0, rig.cq));
        }
        // SAFETY: the rig keeps the CQ alive.
        unsafe { ibv_ack_cq_events(rig.cq, 1) };
    }
    destroy(&[a, b]);
}

#[test]
fn moderated_cq_reports_fewer_completions_after_period() {
    let rig = Rig::new();
    let [a, b] = rig.rc_pair();
    assert_eq!(moderate(&rig, 1, 1000, 2000), 0);
    for _ in 0..3 {
        arm(&rig);
        write(&rig, a);
        assert_eq!(get_cq_event(&rig), (0, rig.cq));
    }
    // SAFETY: the rig keeps the CQ alive.
    unsafe { ibv_ack_cq_events(rig.cq, 3) };
    destroy(&[a, b]);
}

/// A CQ that another thread may use.
struct SendableCq(*mut ibv_cq);

// SAFETY: the library allows verbs on a CQ from any thread.
unsafe impl Send for SendableCq {}

impl SendableCq {
    fn resize(&self, cqe: c_int) -> c_int {
        // SAFETY: the rig keeps the CQ alive.
        unsafe { ibv_resize_cq(self.0, cqe) }
    }
}

#[test]
fn cq_is_resized_under_load() {
    let rig = Rig::new();
    let [a, b] = rig.rc_pair();
    let (cq, done) = (SendableCq(rig.cq), &AtomicBool::new(false));
    let resized = std::thread::scope(|scope| {
        let resizer = scope.spawn(move || {
            let mut resized = 0;
            while !done.load(Ordering::Relaxed) || resized == 0 {
                assert_eq!([cq.resize(16), cq.resize(5000)], [0, 0]);
                resized += 1;
            }
            resized
        });
        for round in 0..500u64 {
            let base = round * 4;
            for wr_id in base..base + 4 {
                assert_eq!(rig.post_recv(b, wr_id, &[rig.sge(100, 1)]), 0);
                assert_eq!(rig.post_send(a, &mut send_wr(1_000_000 + wr_id, SEND, &[rig.sge(0, 1)])).0, 0);
            }
            let mut ids: Vec<_> = rig.completions(8).iter().map(|wc| (wc.status, wc.wr_id % 1_000_000)).collect();
            ids.sort_unstable();
            assert!(ids.iter().copied().eq((0..8).map(|n| (0, base + n / 2))), "{ids:?}");
        }
        done.store(true, Ordering::Relaxed);
        resizer.join().unwrap()
    });
    assert!(resized > 0);
    // SAFETY: the rig keeps the CQ alive.
    unsafe {
        assert_eq!((*rig.cq).cqe, 5000);
        for wrong in [-1, 0, c_int::MAX] {
            assert_eq!(ibv_resize_cq(rig.cq, wrong), libc::EINVAL);
        }
    }
    write(&rig, a);
    write(&rig, a);
    destroy(&[a, b]);
}

#[test]
fn cq_resize_below_its_number_of_completions_is_refused() {
    let rig = Rig::new();
    let [a, b] = rig.rc_pair();
    modify(a, ibv_qp_attr { qp_state: ERR, ..ibv_qp_attr::default() }, STATE);
    let sges = [rig.sge(0, 1)];
    for wr_id in 0..3 {
        assert_eq!(rig.post_recv(a, wr_id, &sges), 0);
    }
    // SAFETY: the rig keeps the CQ alive.
    unsafe {
        assert_eq!(ibv_resize_cq(rig.cq, 2), libc::EINVAL);
        assert_eq!(ibv_resize_cq(rig.cq, 3), 0);
    }
    assert_eq!(rig.completions(3).len(), 3);
    destroy(&[a, b]);
}

/// Returns the current time of the clock of completion timestamps, in nanoseconds.
fn raw_clock(rig: &Rig) -> u64 {
    let mut values = ibv_values_ex { comp_mask: 1, raw_clock: libc::timespec { tv_sec: 0, tv_nsec: 0 } };
    // SAFETY: the rig keeps the context alive; the structure is a local variable.
    assert_eq!(unsafe { query_rt_values(rig.context, &raw mut values) }, 0);
    values.raw_clock.tv_sec as u64 * 1_000_000_000 + values.raw_clock.tv_nsec as u64
}

fn wall_clock() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64
}

#[test]
fn completion_timestamps_lie_between_post_and_poll() {
    let mut rig = Rig::new();
    let mut attr = extended_cq(16, WC_FLAGS_TIMES);
    // SAFETY: the rig keeps the context alive; the structure is a local variable.
    let cq = unsafe { create_cq_ex(rig.context, &raw mut attr) };
    let plain_cq = core::mem::replace(&mut rig.cq, cq.cast());
    let [a, b] = rig.rc_pair();
    let before = (raw_clock(&rig), wall_clock());
    let sges = [rig.sge(0, 1)];
    assert_eq!(rig.post_send(a, &mut rdma_wr(1, WRITE, &sges, rig.addr(200), rig.rkey())).0, 0);
    // SAFETY: this test created the extended CQ, and calls it in the order of the man page.
    let (raw, wall) = unsafe {
        let deadline = Instant::now() + TIMEOUT;
        while (*cq).start_poll.unwrap()(cq, &mut ibv_poll_cq_attr { comp_mask: 0 }) != 0 {
            assert!(Instant::now() < deadline);
        }
        let times = ((*cq).read_completion_ts.unwrap()(cq), (*cq).read_completion_wallclock_ns.unwrap()(cq));
        assert_eq!((*cq).next_poll.unwrap()(cq), libc::ENOENT);
        (*cq).end_poll.unwrap()(cq);
        times
    };
    assert!((before.0..=raw_clock(&rig)).contains(&raw) && (before.1..=wall_clock()).contains(&wall));
    destroy(&[a, b]);
    // SAFETY: this test created the CQ and does not use it afterwards.
    assert_eq!(unsafe { ibv_destroy_cq(cq.cast()) }, 0);
    rig.cq = plain_cq;
}

#[test]
fn wallclock_timestamps_of_one_cq_never_decrease() {
    let mut rig = Rig::new();
    let mut attr = extended_cq(256, WC_FLAGS_TIMES);
    // SAFETY: the rig keeps the context alive; the structure is a local variable.
    let cq = unsafe { create_cq_ex(rig.context, &raw mut attr) };
    let plain_cq = core::mem::replace(&mut rig.cq, cq.cast());
    let [a, b] = rig.rc_pair();
    let (sges, mut last, deadline) = ([rig.sge(0, 1)], 0, Instant::now() + TIMEOUT);
    for _ in 0..200 {
        for wr_id in 0..8 {
            assert_eq!(rig.post_send(a, &mut rdma_wr(wr_id, WRITE, &sges, rig.addr(200), rig.rkey())).0, 0);
        }
        let mut polled = 0;
        while polled < 8 {
            assert!(Instant::now() < deadline);
            // SAFETY: this test created the extended CQ, and calls it in the order of the man page.
            unsafe {
                if (*cq).start_poll.unwrap()(cq, &mut ibv_poll_cq_attr { comp_mask: 0 }) != 0 {
                    continue;
                }
                loop {
                    polled += 1;
                    let wall = (*cq).read_completion_wallclock_ns.unwrap()(cq);
                    assert!(wall >= last, "{} ns back", last - wall);
                    assert_eq!((*cq).read_completion_wallclock_ns.unwrap()(cq), wall, "read again");
                    last = wall;
                    if (*cq).next_poll.unwrap()(cq) != 0 {
                        break;
                    }
                }
                (*cq).end_poll.unwrap()(cq);
            }
        }
    }
    destroy(&[a, b]);
    // SAFETY: this test created the CQ and does not use it afterwards.
    assert_eq!(unsafe { ibv_destroy_cq(cq.cast()) }, 0);
    rig.cq = plain_cq;
}

#[test]
fn cq_without_channel_can_be_armed() {
    let mut rig = Rig::new();
    // SAFETY: the rig keeps the context alive.
    let cq = unsafe { ibv_create_cq(rig.context, 8, null_mut(), null_mut(), 0) };
    let plain_cq = core::mem::replace(&mut rig.cq, cq);
    let [a, b] = rig.rc_pair();
    arm(&rig);
    write(&rig, a);
    arm(&rig);
    write(&rig, a);
    destroy(&[a, b]);
    // SAFETY: this test created the CQ and does not use it afterwards.
    assert_eq!(unsafe { ibv_destroy_cq(cq) }, 0);
    rig.cq = plain_cq;
}
