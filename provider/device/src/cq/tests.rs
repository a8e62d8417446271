//! Completion queues: order, events, overrun, numbering.

use super::*;
use crate::testing;
use roxe_base::limits::MAX_CQE;

fn cqe(wr_id: u64) -> Cqe {
    Cqe { wr_id, ..Cqe::default() }
}

fn solicited(wr_id: u64) -> Cqe {
    Cqe { solicited: true, ..cqe(wr_id) }
}

/// A timestamp, in nanoseconds, that the engine's clock does not reach during the test.
const LATE: u64 = 1 << 62;

fn late(wr_id: u64) -> Cqe {
    Cqe { timestamp: LATE, ..cqe(wr_id) }
}

fn cq(capacity: u32) -> Arc<Cq> {
    let context = testing::context();
    let channel = Some(context.create_comp_channel().unwrap());
    context.create_cq(CqInit { cqe: capacity, channel, user_context: 77, ..CqInit::default() }).unwrap()
}

fn drain(cq: &Cq) -> Vec<u64> {
    let mut ids = vec![];
    cq.poll(usize::MAX, |cqe| ids.push(cqe.wr_id)).unwrap();
    ids
}

#[test]
fn entries_are_polled_in_order_and_in_batches() {
    let cq = cq(10);
    (0..5).for_each(|i| assert_eq!(cq.push(cqe(i)), Ok(false)));
    let mut first = vec![];
    assert_eq!(cq.poll(2, |cqe| first.push(cqe.wr_id)).unwrap(), 2);
    assert_eq!(first, [0, 1]);
    assert_eq!(drain(&cq), [2, 3, 4]);
    assert_eq!(cq.poll(0, |_| panic!("no entry was requested")).unwrap(), 0);
    assert!(drain(&cq).is_empty());
}

#[test]
fn timestamps_never_go_back() {
    let cq = cq(10);
    for timestamp in [5, 9, 7, 10] {
        cq.push(Cqe { timestamp, ..cqe(0) }).unwrap();
    }
    let mut times = vec![];
    cq.poll(10, |cqe| times.push(cqe.timestamp)).unwrap();
    assert_eq!(times, [5, 9, 9, 10]);
}

// clause: CQ-OVERRUN
#[test]
fn overrun_is_permanent_and_keeps_entries() {
    let cq = cq(2);
    cq.push(cqe(1)).unwrap();
    cq.push(cqe(2)).unwrap();
    assert_eq!(cq.push(cqe(3)), Err(Overrun));
    assert_eq!(drain(&cq), [1, 2]);
    assert_eq!(cq.push(cqe(4)), Err(Overrun));
    let event = cq.context().next_async_event().unwrap();
    assert_eq!((event.kind, event.user_context), (AsyncEventKind::CqErr, 77));
}

#[test]
fn queue_that_ignores_overrun_keeps_all_entries() {
    let init = CqInit { cqe: 2, ignore_overrun: true, ..CqInit::default() };
    let cq = testing::context().create_cq(init).unwrap();
    (0..1000).for_each(|i| assert_eq!(cq.push(cqe(i)), Ok(false)));
    assert_eq!(drain(&cq), (0..1000).collect::<Vec<_>>());
    assert_eq!(cq.capacity(), 2);
}

// clause: CQ-ARM
#[test]
fn armed_queue_fires_once_for_later_entries() {
    let cq = cq(10);
    cq.req_notify(false);
    assert_eq!(cq.push(cqe(2)), Ok(true));
    assert_eq!(cq.push(cqe(3)), Ok(false));
    cq.notify();
    assert_eq!(cq.channel().unwrap().get_event().unwrap(), 77);
}

/// Returns true if an event is pending.
fn has_event(cq: &Cq) -> bool {
    testing::is_readable(cq.channel().unwrap().fd())
}

// clause: CQ-ARM
#[test]
fn unpolled_entry_before_arming_fires_at_once() {
    let cq = cq(10);
    cq.push(cqe(1)).unwrap();
    cq.req_notify(true);
    assert!(!has_event(&cq), "it is not solicited");
    cq.req_notify(false);
    assert!(has_event(&cq));
    cq.channel().unwrap().get_event().unwrap();
    cq.req_notify(false);
    assert!(!has_event(&cq), "it was announced");
    assert_eq!(cq.push(solicited(2)), Ok(true));
    cq.push(solicited(3)).unwrap();
    cq.req_notify(true);
    assert!(has_event(&cq), "only the second was announced");
}

// clause: CQ-ARM
#[test]
fn polled_entry_before_arming_does_not_fire() {
    let cq = cq(10);
    cq.push(cqe(1)).unwrap();
    assert_eq!(drain(&cq), [1]);
    cq.req_notify(false);
    assert!(!has_event(&cq));
    assert_eq!(cq.push(cqe(2)), Ok(true));
}

// clause: CQ-ARM
#[test]
fn solicited_arming_waits_for_solicited_entry() {
    let cq = cq(10);
    cq.req_notify(true);
    assert_eq!(cq.push(cqe(1)), Ok(false));
    assert_eq!(cq.push(solicited(2)), Ok(true));
}

// clause: CQ-ARM
#[test]
fn arming_for_all_outweighs_arming_for_solicited() {
    let cq = cq(10);
    cq.req_notify(true);
    cq.req_notify(false);
    cq.req_notify(true);
    assert_eq!(cq.push(cqe(1)), Ok(true));
}

#[test]
fn moderated_event_covers_several_entries() {
    let cq = cq(100);
    cq.moderate(Moderation { count: 4, period: u16::MAX });
    cq.req_notify(false);
    let fired: Vec<_> = (0..12).filter(|&i| cq.push(late(i)).unwrap()).collect();
    assert_eq!(fired, [3], "armed once");
    let solicited = |wr_id| Cqe { solicited: true, ..late(wr_id) };
    cq.req_notify(true);
    assert!(!(0..3).any(|i| cq.push(solicited(i)).unwrap()));
    assert_eq!(cq.push(late(3)), Ok(false), "not solicited");
    assert_eq!(cq.push(solicited(4)), Ok(true));
}

#[test]
fn moderated_entry_before_arming_waits_at_most_a_period() {
    let cq = cq(100);
    cq.moderate(Moderation { count: 4, period: 10 });
    assert_eq!(cq.push(late(1)), Ok(false));
    cq.req_notify(false);
    assert!(!has_event(&cq));
    cq.on_deadline(Instant(LATE + 10_000));
    assert!(has_event(&cq));
}

#[test]
fn end_of_period_announces_entries_if_armed() {
    let cq = cq(100);
    cq.moderate(Moderation { count: 4, period: 10 });
    cq.req_notify(false);
    assert_eq!(cq.push(late(1)), Ok(false));
    cq.on_deadline(Instant(LATE + 10_000));
    assert_eq!(cq.channel().unwrap().get_event().unwrap(), 77);
    assert_eq!(cq.push(late(2)), Ok(false), "not armed again");
}

#[test]
fn queue_without_channel_never_notifies() {
    let cq = testing::context().create_cq(CqInit { cqe: 4, ..CqInit::default() }).unwrap();
    cq.req_notify(false);
    assert_eq!(cq.push(cqe(1)), Ok(false));
}

#[test]
fn resize_keeps_entries_or_fails() {
    let cq = cq(1000);
    (0..600).for_each(|i| assert_eq!(cq.push(cqe(i)), Ok(false)));
    assert_eq!(cq.resize(599).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(cq.resize(0).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(cq.resize(MAX_CQE + 1).unwrap_err().errno(), libc::EINVAL);
    cq.resize(600).unwrap();
    assert_eq!(cq.capacity(), 600);
    assert_eq!(drain(&cq), (0..600).collect::<Vec<_>>());
}

#[test]
fn invalid_sizes_and_vectors_are_refused() {
    let context = testing::context();
    for (cqe, comp_vector) in [(0, 0), (MAX_CQE + 1, 0), (1, NUM_COMP_VECTORS)] {
        let init = CqInit { cqe, comp_vector, ..CqInit::default() };
        assert_eq!(context.create_cq(init).unwrap_err().errno(), libc::EINVAL);
    }
    assert!(context.create_cq(CqInit { cqe: MAX_CQE, ..CqInit::default() }).is_ok());
}

#[test]
fn destroyed_queue_drops_its_events() {
    let context = testing::context();
    let channel = context.create_comp_channel().unwrap();
    let make = |user_context| {
        let init = CqInit { cqe: 4, channel: Some(Arc::clone(&channel)), user_context, ..CqInit::default() };
        context.create_cq(init).unwrap()
    };
    let (gone, stays) = (make(1), make(2));
    gone.notify();
    stays.notify();
    let user = gone.uses.hold();
    assert_eq!(gone.destroy().unwrap_err().errno(), libc::EBUSY);
    drop(user);
    gone.destroy().unwrap();
    gone.notify();
    assert_eq!(channel.get_event().unwrap(), 2);
    assert_eq!(channel.destroy().unwrap_err().errno(), libc::EBUSY);
    drop(stays);
    assert!(channel.destroy().is_ok());
}

/// Returns an entry of queue pair `qpn`.
fn cqe_of(qpn: u32) -> Cqe {
    Cqe { qpn: Qpn::new(qpn), ..Cqe::default() }
}

// clause: SEND-PLACE
#[test]
fn unpolled_counts_survive_resets_of_other_qps() {
    // All assignments of six entries to three queue pairs, repeated, while the queue pairs are
    // reset in turn and the queue is polled without running empty for long.
    for case in 0..3u32.pow(6) * 4 {
        let cq = cq(100);
        let owner = |at: u32| case / 4 / 3u32.pow(at) % 3;
        let mut unpolled: [Unpolled; 3] = Default::default();
        let mut waiting = VecDeque::new();
        for at in 0..24 {
            cq.push_send(cqe_of(owner(at % 6)), &mut unpolled[owner(at % 6) as usize]).unwrap();
            waiting.push_back(owner(at % 6));
            if at % 4 == case % 4 {
                let reset = (at / 4) % 3;
                cq.forget(Qpn::new(reset), |_| {});
                waiting.retain(|&owner| owner != reset);
                unpolled[reset as usize].clear();
            }
            if at % 5 == 4 {
                let n = cq.take(2, |cqe| assert_eq!(waiting.pop_front(), Some(cqe.qpn.get())));
                assert!(n == 2 || waiting.is_empty());
            }
            for (qpn, unpolled) in (0..).zip(&mut unpolled) {
                unpolled.forget(cq.polled());
                let left = waiting.iter().filter(|&&owner| owner == qpn).count();
                assert_eq!(unpolled.len() as usize, left, "case {case}, queue pair {qpn} after {at}");
            }
        }
    }
}

// clause: CQ-ARM
#[test]
fn announced_entry_does_not_fire_again_after_reset() {
    let cq = cq(10);
    cq.req_notify(false);
    cq.push(cqe_of(1)).unwrap();
    cq.req_notify(false);
    assert_eq!(cq.push(cqe_of(2)), Ok(true));
    cq.push(cqe_of(1)).unwrap();
    cq.forget(Qpn::new(1), |_| {});
    cq.req_notify(false);
    assert!(!has_event(&cq), "the entry of queue pair 2 was announced");
}

#[test]
fn no_entry_is_lost_between_arming_and_polling() {
    const ENTRIES: u64 = 20_000;
    let cq = cq(ENTRIES as u32);
    let producer = std::thread::spawn({
        let cq = Arc::clone(&cq);
        move || {
            for i in 0..ENTRIES {
                if cq.push(cqe(i)).unwrap() {
                    cq.notify();
                }
            }
        }
    });
    let mut seen = drain(&cq);
    while (seen.len() as u64) < ENTRIES {
        cq.req_notify(false);
        seen.extend(drain(&cq));
        if (seen.len() as u64) < ENTRIES {
            // Blocks forever if an event is lost.
            cq.channel().unwrap().get_event().unwrap();
            seen.extend(drain(&cq));
        }
    }
    producer.join().unwrap();
    assert!(seen.iter().copied().eq(0..ENTRIES));
}

#[test]
fn unpolled_forgets_polled_entries() {
    let mut unpolled = Unpolled::default();
    for (number, polled, len) in [(3, 0, 1), (5, 3, 2), (9, 4, 2), (10, 9, 2), (11, 11, 1)] {
        unpolled.note(number, polled);
        assert_eq!(unpolled.len(), len, "entry {number}, {polled} polled");
    }
    unpolled.forget(11);
    assert_eq!(unpolled.len(), 1);
    unpolled.forget(12);
    assert_eq!(unpolled.len(), 0);
}
