//! Litmus programs for one queue pair: possible orders in which payload becomes visible.

use super::*;
use crate::testing::Pages;
use std::collections::BTreeSet;

/// Offset of the payload.
const DATA: u64 = 0;
/// Length of the payload in bytes.
const LEN: usize = 100;
/// Offset of the flag.
const FLAG: u64 = 1024;

/// A queue pair of the weakest legal card, and the memory of its process.
struct Litmus {
    pages: Pages,
    placement: Placement,
}

impl Litmus {
    fn new(seed: u64) -> Self {
        guard::install();
        Self { pages: Pages::new(1), placement: Placement::new(seed, 0) }
    }

    /// Receives a peer's WRITE or a packet of a message.
    fn receive(&mut self, at: u64, bytes: &[u8]) {
        self.placement.delay(Side::Recv, &[(self.pages.addr() + at, bytes)]);
    }

    fn byte(&self, at: u64) -> u8 {
        let mut byte = [0];
        guard::read(self.pages.addr() + at, own_cells(&mut byte)).unwrap();
        byte[0]
    }

    /// Returns for each byte of data true if it is visible.
    fn visible(&self) -> Vec<bool> {
        (0..LEN as u64).map(|at| self.byte(DATA + at) != 0).collect()
    }

    /// Places payload until none is delayed, and calls `observe` in between.
    fn watch(mut self, mut observe: impl FnMut(&Self)) {
        observe(&self);
        for _ in 0..1000 {
            if self.placement.is_settled(Side::Recv) {
                return;
            }
            self.placement.place_some();
            observe(&self);
        }
        panic!("some payload is never placed");
    }
}

const SEEDS: u64 = 200;

/// Returns the outcomes of a litmus program over all seeds.
fn outcomes<O: Ord>(program: impl Fn(Litmus, &mut BTreeSet<O>)) -> BTreeSet<O> {
    let mut outcomes = BTreeSet::new();
    (0..SEEDS).for_each(|seed| program(Litmus::new(seed), &mut outcomes));
    outcomes
}

// IBA §9.5: a WRITE is visible for sure only when a later receive, atomic or WRITE with immediate
// data completes. Neither its last byte nor the data of a later plain WRITE proves it.
#[test]
fn flag_may_be_visible_before_earlier_data() {
    let seen = outcomes(|mut litmus, outcomes| {
        litmus.receive(DATA, &[7; LEN]);
        litmus.receive(FLAG, &[1]);
        litmus.watch(|litmus| {
            outcomes.insert((litmus.byte(FLAG) == 1, litmus.visible().iter().all(|visible| *visible)));
        });
    });
    assert_eq!(seen.len(), 4, "every combination: {seen:?}");
}

#[test]
fn last_byte_may_be_visible_before_first() {
    let seen = outcomes(|mut litmus, outcomes| {
        litmus.receive(DATA, &[7; LEN]);
        litmus.watch(|litmus| {
            let visible = litmus.visible();
            outcomes.insert((visible[0], visible[LEN - 1]));
        });
    });
    assert_eq!(seen.len(), 4, "every combination: {seen:?}");
}

#[test]
fn word_may_be_visible_in_part() {
    let seen = outcomes(|mut litmus, outcomes| {
        litmus.receive(FLAG, &[0xff; 8]);
        litmus.watch(|litmus| {
            outcomes.insert((0..8).filter(|at| litmus.byte(FLAG + at) != 0).count());
        });
    });
    assert!(seen.contains(&0) && seen.contains(&8) && seen.iter().any(|count| (1..8).contains(count)), "{seen:?}");
}

#[test]
fn settle_places_all_payload_of_one_side() {
    let seen = outcomes(|mut litmus, outcomes| {
        let addr = litmus.pages.addr();
        litmus.placement.delay(Side::Send, &[(addr + FLAG, &[1; LEN])]);
        litmus.receive(DATA, &[7; LEN]);
        litmus.placement.settle(Side::Recv);
        assert!(litmus.visible().iter().all(|visible| *visible));
        outcomes.insert(litmus.placement.is_settled(Side::Send));
        litmus.placement.settle(Side::Send);
        assert_eq!(litmus.byte(FLAG + LEN as u64 - 1), 1);
        assert_eq!(litmus.placement.waiting, 0);
    });
    assert_eq!(seen.len(), 2);
}

// IBA §9.5: a queue pair executes requests in order, so of two writes to the same bytes the later
// one remains, and no byte changes back to the earlier one.
#[test]
fn overlapping_writes_keep_order() {
    let seen = outcomes(|mut litmus, outcomes| {
        litmus.receive(DATA, &[1; LEN]);
        litmus.receive(DATA + 50, &[2; LEN]);
        let mut newest = vec![0; LEN + 50];
        litmus.watch(|litmus| {
            for (index, newest) in newest.iter_mut().enumerate() {
                let now = litmus.byte(DATA + index as u64);
                assert!(now >= *newest, "byte {index} was {newest} and is {now}");
                *newest = now;
            }
            outcomes.insert(newest.clone());
        });
        let last = [vec![1; 50], vec![2; LEN]].concat();
        assert_eq!(newest, last);
    });
    assert!(seen.len() > 10, "{}", seen.len());
}

#[test]
fn scattered_payload_is_placed_whole() {
    for seed in 0..SEEDS {
        let mut litmus = Litmus::new(seed);
        let addr = litmus.pages.addr();
        litmus.placement.delay(Side::Recv, &[(addr + 300, &[1; 40]), (addr, &[2; 60]), (addr + 100, &[3])]);
        litmus.placement.place_where(|_| true);
        let at = |at| litmus.byte(at);
        assert_eq!([at(299), at(300), at(339), at(340)], [0, 1, 1, 0], "seed {seed}");
        assert_eq!([at(0), at(59), at(60), at(99), at(100), at(101)], [2, 2, 0, 0, 3, 0], "seed {seed}");
    }
}

#[test]
fn choices_depend_on_seed() {
    let run = |seed| {
        let (mut litmus, mut seen) = (Litmus::new(seed), vec![]);
        (0..4).for_each(|at| litmus.receive(at * 256, &[9; LEN]));
        litmus.watch(|litmus| seen.push((0..1024).map(|at| litmus.byte(at)).collect::<Vec<_>>()));
        seen
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn delayed_payload_is_bounded() {
    let mut litmus = Litmus::new(5);
    let addr = litmus.pages.addr();
    for _ in 0..10_000 {
        let parts: Vec<_> = (0..16).map(|part| (addr + part * 256, &[1u8; 200][..])).collect();
        litmus.placement.delay(Side::Recv, &parts);
        assert!(litmus.placement.waiting <= MAX_DELAYED);
    }
}

#[test]
fn hidden_completion_is_shown_after_few_polls() {
    for seed in 0..100 {
        let mut weak = WeakCq::new(seed, 0, Weakness::COMPLETIONS);
        let (mut held, mut empty_polls, mut was_empty) = (0, 0, false);
        for _ in 0..1000 {
            held += 1;
            weak.hides();
            let (taken, shown) = weak.poll(16, held);
            weak.hidden -= shown;
            assert!(taken <= held - weak.hidden);
            held -= taken;
            empty_polls = if taken == 0 { empty_polls + 1 } else { 0 };
            was_empty |= taken == 0;
            assert!(empty_polls <= MAX_EMPTY_POLLS && held < 200, "{empty_polls} empty polls, {held} held");
        }
        assert!(was_empty);
    }
}
