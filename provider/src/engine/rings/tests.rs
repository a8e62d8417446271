//! Rings whose other half the test holds in its hands.

use super::*;
use crate::config::config;
use crate::net::shm::tests::carry;
use crate::testing;
use std::net::Ipv4Addr;
use std::time;

const PATIENCE: Duration = Duration::from_secs(20);
/// A ring holds some of them.
const LONG: usize = 4112;

fn heading() -> Heading {
    let here = Ipv4Addr::LOCALHOST.into();
    Heading { src: here, dst: here, traffic_class: 0, hop_limit: 64, sealed: false }
}

/// An engine of its own that uses rings, and sleeps unless it is woken.
fn engine() -> Arc<Engine> {
    let quiet = super::super::Config { rings: true, steering: false, ..config().unwrap().clone() };
    let device = Arc::clone(testing::context().device());
    let engine = Arc::new_cyclic(|me| Engine::new(device, Box::leak(Box::new(quiet)), None, me.clone()));
    engine.start_with_links().unwrap();
    engine
}

/// A ring that is in use: what queue pairs write to, and what reads.
fn ring() -> (SharedSender, Inbound) {
    let (ours, theirs) = (Poller::new().unwrap(), Poller::new().unwrap());
    let offer = Offer::new(shm::SIZE).unwrap();
    let descriptors = carry(&offer.descriptors(ours.doorbell()));
    let inbound = Inbound::accept(shm::SIZE, descriptors, theirs.doorbell(), |_| Ok(())).unwrap();
    let Said::Accepted(doorbell) = offer.line.hear() else { panic!("accepted") };
    let sender = Sender { writer: Some(offer.writer), doorbell: Some(doorbell), ..Sender::default() };
    (Arc::new(Mutex::new(sender)), inbound)
}

/// Puts packets in until `room` says that it is enough, or the ring is full; how many.
fn fill(sender: &mut Sender, mut is_enough: impl FnMut(usize) -> bool) -> usize {
    let mut count = 0;
    while !is_enough(count) && sender.slot(&heading(), LONG).is_some() {
        count += 1;
    }
    sender.publish();
    count
}

/// Takes out all that is there.
fn read(inbound: &Inbound) {
    while let Some((meta, _)) = inbound.reader.next().unwrap() {
        inbound.reader.give_back(&meta);
    }
}

#[test]
fn a_ring_that_a_thread_of_the_program_takes_up_wakes_the_one_that_sleeps() {
    let engine = engine();
    let poller = engine.poller().unwrap();
    let mut offers = Vec::new();
    for n in 0..5 {
        let mut offer = Offer::new(shm::SIZE).unwrap();
        engine.accept_ring(shm::SIZE as u32, carry(&offer.descriptors(poller.doorbell())));
        assert_eq!(engine.rings.inbound.read().len(), n + 1);
        let start = time::Instant::now();
        // Nothing but the ring could wake it.
        while !offer.writer.must_wake() {
            assert!(start.elapsed() < PATIENCE, "the writer of ring {n} believes that its reader is awake");
            std::thread::yield_now();
        }
        offer.writer.slot(&heading(), LONG).unwrap().fill(0);
        offer.writer.publish();
        offers.push(offer);
    }
}

#[test]
fn nobody_sleeps_while_there_is_room_for_those_who_wait() {
    let rings = Rings::new(true);
    let (ring, inbound) = ring();
    let mut sender = ring.lock();
    fill(&mut sender, |_| false);
    assert!(!sender.has_room(LONG as u64));
    rings.wait(&ring, &mut sender, Qpn::new(7), false);
    drop(sender);
    assert!(!rings.prepare_sleep());
    read(&inbound);
    assert!(inbound.reader.must_tell());
    // It was told, and may have had something else to do.
    assert!(rings.prepare_sleep());
    // Others were quicker: there is not enough room for those who wait, and the reader has told already.
    let room = shm::SIZE / LONG;
    fill(&mut ring.lock(), |count| count > room / 2 + 8);
    assert!(!inbound.reader.must_tell() && !rings.prepare_sleep());
    read(&inbound);
    assert!(inbound.reader.must_tell() && rings.prepare_sleep());
}
