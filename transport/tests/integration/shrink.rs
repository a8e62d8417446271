//! The checks and the search find a deliberately broken card and print a text to reproduce it.

use roxe_sim::case::Case;
use roxe_sim::case::shrink;
use roxe_sim::rng::Rng;
use roxe_sim::world::{Tamper, World};
use roxe_sim::{Broken, Promise};
use roxe_transport::fault::Action;
use roxe_wire::{Kind, Packet, Psn, Response};
use std::collections::BTreeMap;

/// Returns a card that damages a byte of each request that it receives again.
fn damages_duplicates() -> Tamper {
    let mut newest: BTreeMap<usize, Psn> = BTreeMap::new();
    Box::new(move |end, bytes| {
        let Ok(Packet { header, payload, .. }) = Packet::parse(bytes) else { return };
        let (psn, has_payload) = (header.bth.psn, !payload.is_empty());
        if !matches!(header.kind, Kind::RcRequest(_)) {
            return;
        }
        let newest = newest.entry(end).or_insert_with(|| psn.sub(1));
        if psn.is_after(*newest) {
            *newest = psn;
        } else if has_payload {
            bytes[header.padded_len(0)] ^= 1;
        }
    })
}

fn break_card(world: &mut World<Rng>) {
    world.tamper = Some(damages_duplicates());
}

/// A case whose seed makes the first repeated packet one after a loss, not one after an RNR NAK.
const BUSY: &str = "service=rc net=star nodes=8 gbps=10 connections=24 messages=12 max_len=3000 seed=4
                    seed=5; drop tx 1%; duplicate tx 1%; delay tx 1% by=3us..40us; corrupt header tx 1%";

#[test]
fn broken_card_is_found_and_shrunk_to_one_lost_packet() {
    let case: Case = BUSY.parse().expect("parse the case");
    case.play(&|_| {}).expect("a good card keeps every promise");
    let failure = case.play(&break_card).expect_err("a broken card is found");
    assert_eq!(failure.broken.promise, Promise::Bytes, "{failure:?}");

    let smallest = shrink(&case, &failure, &break_card);
    println!("{smallest}");
    let found = &smallest.case;
    assert_eq!(found.only.as_ref().map(Vec::len), Some(1), "{smallest}");
    assert!(found.rules.list().len() <= 2 && found.rules.seed().is_none(), "{smallest}");
    assert!(found.rules.list().iter().all(|rule| rule.nth.is_some() && rule.rate.is_none()), "{smallest}");
    assert!(found.work.messages <= 6, "{smallest}");

    // The text reproduces the run.
    let again: Case = found.to_string().parse().expect("parse the printed case");
    assert_eq!(&again, found);
    assert_eq!(again.play(&break_card).expect_err("the case fails again").broken, smallest.broken);
    again.play(&|_| {}).expect("a good card keeps every promise");
}

#[test]
fn failing_case_text_reproduces_the_failure() {
    let case: Case =
        "service=rc net=star nodes=8 latency=5us gbps=10 connections=24 only=3 messages=6 max_len=3000 seed=3
        drop tx qp=#6 nth=2
        delay tx qp=#7 nth=1 by=20us"
            .parse()
            .expect("parse the case");
    let report = case.play(&|_| {}).expect("every promise is kept");
    assert_eq!((report.tally.dropped, report.tally.delayed), (1, 1));
    assert!(report.sends == 12 && report.failed == 0, "{report:?}");
}

/// Returns a card that changes each acknowledgement that it receives.
fn rewrites_acks(change: fn(&mut [u8])) -> Tamper {
    Box::new(move |_, bytes| {
        let ack =
            Packet::parse(bytes).is_ok_and(|packet| matches!(packet.header.kind, Kind::RcResponse(Response::Ack(_))));
        if ack {
            change(bytes);
        }
    })
}

#[test]
fn every_promise_is_checked() {
    let case: Case = "service=rc net=star nodes=2 gbps=10 messages=40 max_len=1000 seed=3".parse().expect("legal");
    let broken = |prepare: fn(&mut World<Rng>)| case.play(&prepare).expect_err("the card breaks a promise").broken;
    // One more packet is acknowledged than arrived (bytes 9 to 11 are the PSN).
    let early = broken(|world| world.tamper = Some(rewrites_acks(|bytes| bytes[11] = bytes[11].wrapping_add(1))));
    assert_eq!(early.promise, Promise::Windows, "{early}");
    // The syndrome means "remote operational error".
    let refused = broken(|world| world.tamper = Some(rewrites_acks(|bytes| bytes[12] = 0x63)));
    assert_eq!(refused.promise, Promise::Completions, "{refused}");
    // The syndrome means "receiver not ready", and it never changes.
    let rnr = broken(|world| world.tamper = Some(rewrites_acks(|bytes| bytes[12] = 0x21)));
    assert_eq!(rnr.promise, Promise::Progress, "{rnr}");
    let credit = broken(|world| world.ends[1].host.flow.reserved = 1);
    assert!(matches!(credit.promise, Promise::Credit | Promise::NoPanic), "{credit}");
    // All packets of A are lost, so its retries run out.
    let lost = broken(|world| world.wire.set_script(roxe_sim::Peer::A, Box::new(|_, _| Some(roxe_sim::wire::LOST))));
    assert_eq!(lost.promise, Promise::Completions, "{lost}");
}

#[test]
fn cases_roundtrip_through_text() {
    for text in [
        "service=rc net=star nodes=3 latency=2us gbps=10 queue=65536 mark=2000 mixed connections=6 only=1,4 messages=4 \
         max_len=2000 mishaps dcqcn early_wait receives=1 window=40000 error=3@20us gone=2@7us seed=7\nseed=3\ndrop 1% tx",
        "service=ud net=direct nodes=2 latency=5us connections=1 messages=1 max_len=9 seed=0",
    ] {
        let case: Case = text.parse().expect("legal");
        assert_eq!(case.to_string(), text);
    }
    for (text, problem) in [
        ("service=rd", "service=rd"),
        ("latency=2", "latency=2"),
        ("connections=2 only=2", "does not exist"),
        ("nodes=1", "does not exist"),
        ("seed=1\nlose tx", "lose"),
    ] {
        let error = text.parse::<Case>().expect_err(text);
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn panic_counts_as_a_broken_promise() {
    let case: Case = BUSY.parse().expect("parse the case");
    let failure = case
        .play(&|world| {
            let mut left = 100;
            world.tamper = Some(Box::new(move |_, _| {
                left -= 1;
                assert!(left > 0, "enough");
            }));
        })
        .expect_err("a panic is found");
    let Broken { promise, detail, .. } = &failure.broken;
    assert_eq!((*promise, detail.as_str()), (Promise::NoPanic, "enough"));
    assert!(failure.faults.iter().any(|fault| fault.verdict.drop), "the earlier faults are recorded");
}

#[test]
fn every_kind_of_fault_can_be_made_explicit() {
    let case: Case = "service=rc net=star nodes=4 gbps=10 connections=12 messages=12 max_len=3000 seed=1
        seed=2; drop tx 1%; duplicate tx 1% by=1us..9us; reorder 1% by=30us; corrupt payload 1%; corrupt header rx 1%;
        corrupt icrc 1%; ecn 1%; rnr 1%"
        .parse()
        .expect("parse the case");
    let fails_late = |world: &mut World<Rng>| {
        let mut left = 300;
        world.tamper = Some(Box::new(move |_, _| {
            left -= 1;
            assert!(left > 0, "enough");
        }));
    };
    let failure = case.play(&fails_late).expect_err("the card always fails");
    let explicit = roxe_sim::case::rules_of(&failure.faults);
    let has = |kind: fn(&Action) -> bool| explicit.list().iter().any(|rule| kind(&rule.action));
    assert!(has(|action| matches!(action, Action::Drop)) && has(|action| matches!(action, Action::Duplicate { .. })));
    assert!(has(|action| matches!(action, Action::Delay(_))) && has(|action| matches!(action, Action::Corrupt(_))));
    assert!(has(|action| matches!(action, Action::Ecn)) && has(|action| matches!(action, Action::Rnr)));
    // The rules cause the recorded faults.
    let again = Case { rules: explicit.clone(), ..case }.play(&fails_late).expect_err("the card always fails");
    let done = |faults: &[roxe_sim::wire::Fault]| faults.iter().map(|f| (f.end, f.dir, f.nth.all)).collect::<Vec<_>>();
    let same = done(&again.faults).iter().zip(done(&failure.faults)).take_while(|(a, b)| **a == *b).count();
    assert_eq!(same, explicit.list().len().min(failure.faults.len()), "{explicit}");
}
