//! Decisions depend on the seed only.

use super::*;
use proptest::prelude::*;

/// Number of packets that the injector judges.
const COUNT: u32 = 4000;

fn dropped_by(text: &str, seed: u64) -> Vec<u32> {
    Injector::new(&rules(text), seed).dropped(tx(), COUNT)
}

#[test]
fn rate_selects_about_its_share() {
    for (text, part) in [("drop 50%", 2000), ("drop 3%", 120), ("drop 0.1%", 4), ("drop 0%", 0), ("drop 100%", 4000)] {
        let total: usize = (0..20).map(|seed| dropped_by(text, seed).len()).sum();
        let (expected, slack) = (part * 20, if matches!(part, 0 | 4000) { 0 } else { 4 * (part * 20_usize).isqrt() });
        assert!(total.abs_diff(expected) <= slack, "{text}: {total} instead of {expected}");
    }
}

#[test]
fn seed_of_the_rules_precedes_the_argument() {
    assert_eq!(dropped_by("drop 3%", 1), dropped_by("drop 3%", 1));
    assert_ne!(dropped_by("drop 3%", 1), dropped_by("drop 3%", 2));
    assert_eq!(dropped_by("seed=9; drop 3%", 1), dropped_by("drop 3%", 9));
    assert_eq!((injector("seed=9").seed(), injector("").seed()), (9, 1));
}

#[test]
fn other_rules_do_not_change_the_decisions_of_a_rule() {
    let alone = dropped_by("drop 3%", 1);
    assert_eq!(dropped_by("ecn 50%; corrupt header 9%; drop 3%; duplicate", 1), alone);
    let rules = rules("drop 3% times=1; drop 3%");
    let mut injector = Injector::new(&Rules::new(None, rules.list()[1..].to_vec()), 1);
    assert_eq!(injector.dropped(tx(), COUNT), alone);
}

#[test]
fn equal_rules_decide_independently() {
    let both = dropped_by("drop 3%; drop 3%", 1);
    assert!(both.len() > dropped_by("drop 3%", 1).len() * 3 / 2, "{}", both.len());
}

#[test]
fn qps_and_directions_decide_independently() {
    let mut injector = injector("drop 3%");
    let streams = [tx(), rx(), Stream { ordinal: 1, ..tx() }];
    let [a, b, c] = streams.map(|stream| injector.dropped(stream, COUNT));
    assert!(a != b && a != c && b != c);
}

proptest! {
    /// Interleaved streams get the same verdicts as alone.
    #[test]
    fn decisions_do_not_depend_on_interleaving(order in prop::collection::vec(0..4u32, 0..400), seed in any::<u64>()) {
        let rules = rules(
            "drop 10%; reorder 30%; duplicate 20% nth=5..; corrupt payload 40%; ecn 50% msg=3..9; drop op=SEND nth=7; ecn times=3",
        );
        let stream_of = |index: u32| Stream { ordinal: index / 2, ..[tx(), rx()][index as usize % 2] };
        let mut together = Injector::new(&rules, seed);
        let mut alone: Vec<_> = (0..4).map(|_| Injector::new(&rules, seed)).collect();
        let mut psns = [0; 4];
        for index in order {
            let psn = &mut psns[index as usize];
            let verdict = together.judge_one(stream_of(index), *psn, SEND, b"data");
            prop_assert_eq!(verdict, alone[index as usize].judge_one(stream_of(index), *psn, SEND, b"data"));
            *psn += 1;
        }
        let sums = alone.iter().map(Injector::totals).reduce(|a, b| {
            a.into_iter().zip(b).map(|(a, b)| (a.0 + b.0, a.1 + b.1)).collect()
        });
        prop_assert_eq!(Some(together.totals()), sums);
    }
}
