//! Tests of rings whose other end the test holds.

use super::*;
use crate::flow_control::Key;
use crate::poller::Poller;
use crate::rings::{RingRoute, RingState, Rings};
use crate::testing::private_engine;
use roxe_base::config::config;
use roxe_base::lock::Mutex;
use roxe_net::shm::IpFields;
use roxe_net::shm::testing::{carry, keep};
use roxe_net::slot::SlotSocket;
use roxe_transport::wr::Av;
use roxe_wire::Qpn;
use std::net::Ipv4Addr;
use std::sync::mpsc;
use std::time::{self, Duration};

const TIMEOUT: Duration = Duration::from_secs(20);
/// Length in bytes of a packet of which a ring holds several.
const LARGE_PACKET_LEN: usize = 4112;

fn ip_fields() -> IpFields {
    let here = Ipv4Addr::LOCALHOST.into();
    IpFields { src: here, dst: here, traffic_class: 0, hop_limit: 64 }
}

/// Starts a private engine that uses rings, and sleeps unless woken.
fn engine() -> Arc<Engine> {
    let quiet = roxe_base::config::Config { rings: true, steering: false, ..config().unwrap().clone() };
    let engine = private_engine(Box::leak(Box::new(quiet)));
    engine.start_with_links().unwrap();
    engine
}

/// Creates a ring in use; returns its shared writer and its reader.
fn ring() -> (SharedSender, Inbound) {
    let (ours, theirs) = (Poller::new().unwrap(), Poller::new().unwrap());
    let offer = Offer::new(shm::SIZE).unwrap();
    let descriptors = carry(&offer.descriptors(ours.doorbell()));
    let inbound = Inbound::accept(shm::SIZE, descriptors, theirs.doorbell(), |_| Ok(())).unwrap();
    let PeerEvent::Accepted(doorbell) = offer.control.poll() else { panic!("accepted") };
    let sender = Sender { writer: Some(offer.writer), doorbell: Some(doorbell), ..Sender::default() };
    (Arc::new(Mutex::new(sender)), inbound)
}

/// Writes packets until `is_enough` returns true for their number, or the ring is full. Returns the
/// number.
fn fill(sender: &mut Sender, mut is_enough: impl FnMut(usize) -> bool) -> usize {
    let mut count = 0;
    while !is_enough(count) && sender.writer.as_mut().unwrap().slot(&ip_fields(), LARGE_PACKET_LEN).is_some() {
        count += 1;
    }
    sender.publish();
    count
}

fn read(inbound: &Inbound) {
    while inbound.reader.next(|_| {}).unwrap() {}
}

#[test]
fn ring_taken_up_by_program_thread_wakes_sleeper() {
    let engine = engine();
    let poller = engine.scheduler.poller().unwrap();
    let mut offers = Vec::new();
    for n in 0..5 {
        let mut offer = Offer::new(shm::SIZE).unwrap();
        engine.accept_ring(shm::SIZE as u32, carry(&offer.descriptors(poller.doorbell())));
        assert_eq!(engine.rings.inbound.read().len(), n + 1);
        let start = time::Instant::now();
        // Only the ring could wake it.
        while !offer.writer.must_wake() {
            assert!(start.elapsed() < TIMEOUT, "the writer of ring {n} believes that its reader is awake");
            std::thread::yield_now();
        }
        offer.writer.slot(&ip_fields(), LARGE_PACKET_LEN).unwrap().put(&[0; LARGE_PACKET_LEN]).unwrap();
        offer.writer.publish();
        offers.push(offer);
    }
}

#[test]
fn thread_stays_awake_while_waiters_have_room() {
    let rings = Rings::new(true, Default::default());
    let (ring, inbound) = ring();
    let mut sender = ring.lock();
    fill(&mut sender, |_| false);
    assert!(!sender.has_room(LARGE_PACKET_LEN as u64));
    assert!(!rings.wait(&ring, &mut sender, Qpn::new(7), false));
    drop(sender);
    assert!(!rings.prepare_sleep());
    read(&inbound);
    assert!(inbound.reader.must_wake_writer());
    // The thread was woken and may have been busy.
    assert!(rings.prepare_sleep());
    // Other writers were faster: there is too little room for the waiters, and the reader has
    // rung already.
    let room = shm::SIZE / LARGE_PACKET_LEN;
    fill(&mut ring.lock(), |count| count > room / 2 + 8);
    assert!(!inbound.reader.must_wake_writer() && !rings.prepare_sleep());
    read(&inbound);
    assert!(inbound.reader.must_wake_writer() && rings.prepare_sleep());
}

#[test]
fn only_sleeping_thread_is_woken_for_room() {
    let rings = Rings::new(true, Default::default());
    let (ring, inbound) = ring();
    let fill_and_wait = || {
        let mut sender = ring.lock();
        fill(&mut sender, |_| false);
        rings.wait(&ring, &mut sender, Qpn::new(7), false)
    };
    // A thread of the program checks itself.
    assert!(!fill_and_wait());
    read(&inbound);
    assert!(!inbound.reader.must_wake_writer());
    // The ring becomes full only after the thread sleeps.
    assert!(rings.prepare_sleep());
    rings.full.lock().clear();
    rings.has_full.clear();
    ring.lock().is_listed = false;
    assert!(!rings.prepare_sleep() && !fill_and_wait());
    read(&inbound);
    assert!(inbound.reader.must_wake_writer());
    // Room appears before the reader can see the waiter.
    assert!(rings.wait(&ring, &mut ring.lock(), Qpn::new(8), false));
    rings.awake();
    assert!(!rings.wait(&ring, &mut ring.lock(), Qpn::new(9), false), "the awake reader reads without a wake-up");
}

#[test]
fn offer_checks_back_off_until_accepted() {
    let rings = Rings::new(true, Default::default());
    let at = |us: u64| Instant(1_000_000_000 + us * 1000);
    assert!(!rings.answers.are_due(at(0)), "no ring is offered");
    let slot = Slot::of(Qpn::new(0x5000));
    let offer = Offer::new(shm::SIZE).unwrap();
    let poller = Poller::new().unwrap();
    let descriptors = carry(&offer.descriptors(poller.doorbell()));
    assert!(matches!(rings.find(slot), RingRoute::Awaited));
    assert!(rings.note_offer(slot, Ok(offer), at(0)).is_empty());
    let due: Vec<u64> = (0..1000).filter(|us| rings.answers.are_due(at(*us))).collect();
    assert_eq!(due, [20, 40, 80, 160, 320, 640]);
    rings.note_answers(&rings.out.lock());
    assert!(rings.answers.are_due(at(1_000_000)), "the ring is still offered");
    let _accepted = Inbound::accept(shm::SIZE, descriptors, poller.doorbell(), |_| Ok(())).unwrap();
    let mut out = rings.out.lock();
    let event = out.get_mut(&slot).and_then(|state| state.poll_control(&mut Vec::new(), &mut Vec::new()));
    assert_eq!(event, Some(Receiver::Ring));
    rings.note_answers(&out);
    assert!(!rings.answers.are_due(at(100_000_000)));
}

const QPN: Qpn = Qpn::new(7);
const SLOT: Slot = Slot::of(Qpn::new(0x5000));

/// Rings with a request for [`SLOT`] that [`QPN`] waits for.
fn awaited() -> Rings {
    let rings = Rings::new(true, Default::default());
    assert!(matches!(rings.find(SLOT), RingRoute::Awaited));
    assert!(rings.await_ring(SLOT, QPN) && rings.await_ring(SLOT, QPN));
    assert_eq!(rings.wanted(), [SLOT]);
    rings
}

#[test]
fn awaited_ring_accepted_or_refused_serves_once() {
    let poller = Poller::new().unwrap();
    for accepts in [true, false] {
        let (rings, offer) = (awaited(), Offer::new(shm::SMALL).unwrap());
        let descriptors = carry(&offer.descriptors(poller.doorbell()));
        // A refusal closes the descriptors.
        let inbound = accepts
            .then_some(descriptors)
            .map(|descriptors| Inbound::accept(shm::SMALL, descriptors, poller.doorbell(), |_| Ok(())).unwrap());
        assert!(rings.note_offer(SLOT, Ok(offer), Instant(0)).is_empty());
        let mut served = Vec::new();
        rings.out.lock().get_mut(&SLOT).unwrap().poll_control(&mut served, &mut Vec::new());
        assert_eq!(served, [QPN]);
        assert_eq!(matches!(rings.find(SLOT), RingRoute::Ring(_)), accepts);
        assert!(!rings.await_ring(SLOT, QPN), "the offer is answered");
        assert_eq!(rings.awaited_until(), None);
        drop(inbound);
    }
}

#[test]
fn awaited_ring_full_mailbox_is_offered_again() {
    let rings = awaited();
    assert!(rings.note_offer(SLOT, Err(io::ErrorKind::WouldBlock.into()), Instant(0)).is_empty());
    assert!(rings.has_wanted.is_set() && matches!(rings.find(SLOT), RingRoute::Awaited));
    assert_eq!(rings.note_offer(SLOT, Err(io::ErrorKind::ConnectionRefused.into()), Instant(0)), [QPN]);
    assert!(matches!(rings.find(SLOT), RingRoute::Socket));
}

#[test]
fn awaited_ring_without_answer_falls_back_and_may_come_later() {
    let (rings, offer, poller) = (awaited(), Offer::new(shm::SMALL).unwrap(), Poller::new().unwrap());
    let descriptors = carry(&offer.descriptors(poller.doorbell()));
    rings.note_offer(SLOT, Ok(offer), Instant(0));
    let until = rings.awaited_until().unwrap();
    assert!(rings.end_awaiting(Instant(until.0 - 1)).is_empty());
    assert_eq!(rings.end_awaiting(until), [QPN]);
    assert!(matches!(rings.find(SLOT), RingRoute::Socket));
    let _inbound = Inbound::accept(shm::SMALL, descriptors, poller.doorbell(), |_| Ok(())).unwrap();
    rings.out.lock().get_mut(&SLOT).unwrap().poll_control(&mut Vec::new(), &mut Vec::new());
    assert!(matches!(rings.find(SLOT), RingRoute::Ring(_)));
}

#[test]
fn own_slot_has_a_ring_from_the_first_packet() {
    let engine = engine();
    let slot = engine.slot().unwrap();
    let here = Ipv4Addr::LOCALHOST.into();
    let av = Av { sgid: here, dgid: here, hop_limit: 64, ..Av::default() };
    let key = Key { dst: here, slot };
    let flow = engine.flows.get(key, clock::now(), || engine.receiver_at(key));
    let RingRoute::Ring(ring) = engine.find_ring(&av, slot.qpn(5)) else { panic!("no ring") };
    assert_eq!(*flow.receiver.lock(), Receiver::Ring, "datagrams need no credits in rings");
    let before = engine.counters().unknown_qp.get();
    assert_eq!(fill(&mut ring.lock(), |count| count == 1), 1);
    wait_for("the packet is not read", || {
        engine.progress();
        (engine.counters().malformed.get() + engine.counters().unknown_qp.get() > before).then_some(())
    });
}

/// Retries until `poll` returns a value; panics with `failure` after [`TIMEOUT`].
fn wait_for<T>(failure: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = time::Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(start.elapsed() < TIMEOUT, "{failure}");
        std::thread::yield_now();
    }
}

/// A peer process: a slot, and its mailbox.
struct PeerProcess {
    mailbox: SlotSocket,
    poller: Poller,
}

impl PeerProcess {
    fn new(mailbox: SlotSocket) -> Self {
        Self { mailbox, poller: Poller::new().unwrap() }
    }

    fn find_ring(&self, engine: &Engine) -> Option<SharedSender> {
        let here = Ipv4Addr::LOCALHOST.into();
        let av = Av { sgid: here, dgid: here, hop_limit: 64, ..Av::default() };
        let route = engine.find_ring(&av, self.mailbox.slot().qpn(5));
        engine.progress();
        match route {
            RingRoute::Ring(ring) => Some(ring),
            _ => None,
        }
    }

    /// Accepts the ring that `engine` offers.
    fn accept_ring(&self, engine: &Engine) -> Inbound {
        let (size, descriptors) = wait_for("no ring is offered", || {
            assert!(self.find_ring(engine).is_none(), "the ring of an earlier process is used");
            let mut buf = vec![0; 64 << 10];
            let (len, descriptors) = self.mailbox.recv(&mut buf).unwrap()?;
            let Some((Frame::Ring { size }, _)) = Frame::parse(&buf[..len]) else { return None };
            Some((size as usize, descriptors))
        });
        Inbound::accept(size, descriptors, self.poller.doorbell(), |_| Ok(())).unwrap()
    }

    fn check_ring_is_used(&self, engine: &Engine, inbound: &Inbound) {
        let ring = wait_for("no ring is used", || self.find_ring(engine));
        let mut sender = ring.lock();
        assert_eq!(fill(&mut sender, |count| count == 3), 3);
        assert!(inbound.reader.next(|record| assert_eq!(record.meta.len, 3 * LARGE_PACKET_LEN)).unwrap());
    }
}

#[test]
fn new_owner_of_dead_slot_gets_own_ring() {
    let engine = engine();
    let first = PeerProcess::new(SlotSocket::claim(engine.ifindex()).unwrap());
    let slot = first.mailbox.slot();
    let inbound = first.accept_ring(&engine);
    first.check_ring_is_used(&engine, &inbound);
    let old = first.find_ring(&engine).unwrap();
    drop((first, inbound));
    let second = PeerProcess::new(SlotSocket::claim_one(engine.ifindex(), slot).unwrap());
    wait_for("the ring of the dead process is still open", || old.lock().writer.is_none().then_some(()));
    assert!(old.lock().doorbell.is_none());
    let inbound = second.accept_ring(&engine);
    second.check_ring_is_used(&engine, &inbound);
}

#[test]
fn refusing_peer_gets_no_second_offer_at_once() {
    let engine = engine();
    let peer = PeerProcess::new(SlotSocket::claim(engine.ifindex()).unwrap());
    drop(peer.accept_ring(&engine));
    wait_for("the refused ring is not marked", || {
        matches!(engine.rings.out.lock().get(&peer.mailbox.slot()), Some(RingState::Refused(_))).then_some(())
    });
    assert!(peer.find_ring(&engine).is_none() && !engine.rings.has_wanted.is_set());
}

#[test]
fn malformed_ring_data_is_counted_and_broken_ring_closed() {
    let engine = engine();
    let poller = engine.scheduler.poller().unwrap();
    let malformed = || engine.counters().malformed.get() + engine.counters().unknown_qp.get();
    let offer = Offer::new(shm::SIZE).unwrap();
    engine.accept_ring(shm::SIZE as u32, carry(&offer.descriptors(poller.doorbell())));
    let (mut writer, control) = keep(offer);
    assert!(matches!(control.poll(), PeerEvent::Accepted(_)));
    // Packets of every opcode and length in well-formed runs.
    let (before, mut packets) = (malformed(), 0);
    for (seed, len) in
        (0..=u8::MAX).zip([1, 4, 7, 8, 11, 12, 16, 20, 28, 100, 1000, LARGE_PACKET_LEN].into_iter().cycle())
    {
        let bytes: Vec<_> = (0..len).map(|at| seed.wrapping_add((at * 37) as u8)).collect();
        writer.slot(&ip_fields(), len).unwrap().put(&bytes).unwrap();
        writer.publish();
        packets += 1;
        wait_for("the packet is not read", || {
            engine.progress();
            engine.rings.inbound.read().iter().all(|ring| ring.reader.is_empty()).then_some(())
        });
    }
    wait_for("some packets are not counted", || (malformed() >= before + packets).then_some(()));
    assert_eq!(engine.counters().panics.get(), 0);
    writer.break_it();
    wait_for("the broken ring is still read", || {
        engine.progress();
        engine.rings.inbound.read().is_empty().then_some(())
    });
    wait_for("the writer is not told that the ring is closed", || {
        matches!(control.poll(), PeerEvent::Gone).then_some(())
    });
}

#[test]
fn dead_writers_ring_is_read_at_most_once_around() {
    let engine = engine();
    let poller = engine.scheduler.poller().unwrap();
    let offer = Offer::new(shm::SIZE).unwrap();
    engine.accept_ring(shm::SIZE as u32, carry(&offer.descriptors(poller.doorbell())));
    offer.writer.put_header_on_every_line();
    drop(offer);
    wait_for("the ring is read without end", || engine.rings.inbound.read().is_empty().then_some(()));
}

#[test]
fn ring_of_dead_reader_closes_without_blocking_writer() {
    use crate::tx::{TxCache, TxPath};
    use roxe_transport::cx::{PacketNote, TxBatch, TxReason};
    let engine = engine();
    let (ours, theirs) = (Poller::new().unwrap(), Poller::new().unwrap());
    let offer = Offer::new(shm::SIZE).unwrap();
    let descriptors = carry(&offer.descriptors(ours.doorbell()));
    let inbound = Inbound::accept(shm::SIZE, descriptors, theirs.doorbell(), |_| Ok(())).unwrap();
    let PeerEvent::Accepted(doorbell) = offer.control.poll() else { panic!("accepted") };
    let (writer, control) = keep(offer);
    let sender = Sender { writer: Some(writer), doorbell: Some(doorbell), ..Sender::default() };
    let (to_a, to_b) = (Qpn::new(0x70_0001), Qpn::new(0x71_0001));
    engine.rings.out.lock().insert(Slot::of(to_a), RingState::Ready(Arc::new(Mutex::new(sender)), control));
    let here = Ipv4Addr::LOCALHOST.into();
    let av = Av { sgid: here, dgid: here, ..Av::default() };
    let ((opened, is_opened), (go, may_go), (done, is_done)) = (mpsc::channel(), mpsc::channel(), mpsc::channel());
    let (writer, tender, tended) = (Arc::clone(&engine), Arc::clone(&engine), done.clone());
    std::thread::spawn(move || {
        let mut cache = TxCache::default();
        let mut tx_path = TxPath::new(&writer, &mut cache, Qpn::new(7), false);
        let note = PacketNote::without_wr(Qpn::new(7), TxReason::First);
        let is_first_written = tx_path.slot(&av, to_a, 100, &note).is_some();
        opened.send(is_first_written).unwrap();
        may_go.recv().unwrap();
        // The next datagram of this batch is for another process, so the writer looks up its ring.
        let _ = tx_path.slot(&av, to_b, 100, &note);
        tx_path.flush(7);
        done.send("writer").unwrap();
    });
    assert!(
        is_opened.recv_timeout(TIMEOUT).unwrap(),
        "the first datagram goes into ring A, whose lock is held from here"
    );
    drop(inbound);
    std::thread::spawn(move || {
        tender.poll_out_controls();
        tended.send("tender").unwrap();
    });
    let is_given_up = || {
        let out = engine.rings.out.try_lock();
        out.is_some_and(|out| matches!(out.get(&Slot::of(to_a)), Some(RingState::Refused(_))))
    };
    let start = time::Instant::now();
    while !is_given_up() {
        assert!(
            start.elapsed() < TIMEOUT,
            "the thread that closes ring A holds the list of rings until it has the ring"
        );
        std::thread::yield_now();
    }
    go.send(()).unwrap();
    let mut ended = [(); 2].map(|()| is_done.recv_timeout(TIMEOUT).expect("receive the end of both threads"));
    ended.sort_unstable();
    assert_eq!(ended, ["tender", "writer"]);
}

#[test]
fn rings_are_small_beyond_limit_across_engines() {
    let engine = engine();
    // No thread of this process receives.
    let rx = engine.rx.lock();
    let _of_another: Vec<_> = (0..16).map(|_| Offer::new(shm::SMALL).unwrap()).collect();
    let slot = rx.state.slots[0].slot();
    let _offer = engine.offer_ring(&rx.state, slot).unwrap();
    let mut buf = [0; 64];
    let (len, _) = rx.state.slots[0].recv(&mut buf).unwrap().expect("receive the offer");
    let Some((Frame::Ring { size }, _)) = Frame::parse(&buf[..len]) else { panic!("{:?}", &buf[..len]) };
    assert_eq!(size as usize, shm::SMALL);
}

/// Returns the packets of one batch as the reader takes them: the first byte of each, and the
/// number of records. `0x11` stands for an acknowledgement.
fn through_ring(packets: &[(u8, usize)]) -> (Vec<u8>, usize) {
    use crate::run::Run;
    use crate::tx::{TxCache, TxPath};
    use roxe_transport::cx::{PacketNote, TxBatch, TxReason};
    let engine = engine();
    let (ring, inbound) = ring();
    let control = Offer::new(shm::SMALL).unwrap().control;
    engine.rings.out.lock().insert(SLOT, RingState::Ready(ring, control));
    let here = Ipv4Addr::LOCALHOST.into();
    let av = Av { sgid: here, dgid: here, hop_limit: 64, ..Av::default() };
    let mut cache = TxCache::default();
    let mut tx_path = TxPath::new(&engine, &mut cache, QPN, true);
    for (first, len) in packets {
        let reason = if *first == 0x11 { TxReason::Ack } else { TxReason::First };
        let note = PacketNote::without_wr(QPN, reason);
        let room = tx_path.slot(&av, SLOT.qpn(1), *len, &note).unwrap();
        room.put(&vec![*first; *len]).unwrap();
    }
    assert!(tx_path.flush(0));
    tx_path.put_back();
    let (mut order, mut records) = (Vec::new(), 0);
    let take = |record: shm::Record<'_>, order: &mut Vec<u8>| {
        let mut bytes = vec![0; record.meta.len];
        record.bytes.copy_to(&mut bytes).unwrap();
        let run = Run { meta: &record.meta, bytes: &bytes, index: 0 };
        order.extend(run.packets().map(|(_, packet)| packet[0]));
    };
    while inbound.reader.next(|record| take(record, &mut order)).unwrap() {
        records += 1;
    }
    (order, records)
}

// clause: ACK-BEFORE-REQUESTS
#[test]
fn ack_is_taken_before_request_after_it_in_a_ring() {
    const ACK: (u8, usize) = (0x11, 16);
    assert_eq!(through_ring(&[ACK]), (vec![0x11], 1));
    assert_eq!(through_ring(&[ACK, (1, 60)]), (vec![0x11, 1], 1), "one record for both");
    assert_eq!(through_ring(&[ACK, (1, 60), (2, 60)]).0, [0x11, 1, 2]);
    assert_eq!(through_ring(&[ACK, (1, 12)]).0, [0x11, 1], "a packet that is shorter");
    assert_eq!(through_ring(&[ACK, (1, 4000)]), (vec![0x11, 1], 2), "a packet that is long");
    assert_eq!(through_ring(&[(1, 60), ACK, (2, 60), ACK]).0.len(), 4);
}
