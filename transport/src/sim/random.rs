//! Setups and faults by chance.
//!
//! May touch: [`super::setup`], [`super::pair`] and `fault`.

use super::pair::Pair;
use super::rng::Choices;
use super::setup::Setup;
use crate::fault::{Action, Hold, Part, Rate, Rule, Rules};
use crate::qp::Service;
use crate::wr::Access;
use core::time::Duration;

/// A random setup for `service`, with random faults up to `worst` per thousand of each kind.
///
/// A `hardy` pair has all retries there are, and faults pause before they are spent: everything can
/// succeed. Any other has as few as it happens to get.
pub fn random_pair<C: Choices>(service: Service, worst: u32, hardy: bool, mut choices: C) -> Pair<C> {
    let mut setup = random_setup(service, &mut choices);
    if !hardy {
        (setup.retry_cnt, setup.rnr_retry) = (choices.below(8) as u8, choices.below(8) as u8);
    }
    let rules = random_faults(worst, setup.latency, &mut choices);
    let mut pair = Pair::with_choices(setup, choices);
    pair.wire.set_faults(&rules, 0);
    pair.wire.pause_faults_after = hardy.then_some(3);
    pair
}

/// Faults of every kind with random rates up to `worst` per thousand, on packets that leave.
pub fn random_faults(worst: u32, latency: Duration, choices: &mut impl Choices) -> Rules {
    let while_ = |from: u32, to: u32| Hold { min: latency * from / 10, max: latency * to / 10 };
    let actions = [
        Action::Drop,
        Action::Duplicate { copies: 1, after: while_(1, 40) },
        Action::Delay(while_(1, 40)),
        Action::Corrupt(Part::Payload),
        Action::Corrupt(Part::Header),
    ];
    let mut rule = |action| {
        let per_mille = choices.below(worst + 1);
        let mut rule = Rule::new(action);
        rule.rate = Rate::from_micro_percent(per_mille * 100_000);
        rule.dir = Some(crate::fault::Direction::Tx);
        rule
    };
    let list = actions.map(&mut rule).into();
    Rules::new(Some(choices.below(u32::MAX).into()), list)
}

/// A random setup for `service`.
pub fn random_setup(service: Service, choices: &mut impl Choices) -> Setup {
    let base = Setup::of(service);
    let mut caps = base.caps;
    caps.max_send_wr = choices.between(1, 32);
    caps.max_recv_wr = choices.between(1, 32);
    let max_rd_atomic = choices.between(1, 8) as u8;
    Setup {
        path_mtu: choices.pick(&roxe_wire::PathMtu::ALL),
        caps,
        sq_sig_all: choices.chance(300),
        access: base.access | Access::FLUSH_GLOBAL,
        srq: service == Service::Rc && choices.chance(250),
        // Near the end of the number space in half of the runs, so that wrap-around is the common
        // case.
        psn: [psn(choices), psn(choices)],
        timeout: choices.between(8, 12) as u8,
        min_rnr_timer: choices.between(1, 12) as u8,
        max_rd_atomic,
        max_dest_rd_atomic: max_rd_atomic + choices.below(3) as u8,
        batch: choices.between(1, 40) as usize,
        stall: if choices.chance(500) { choices.below(600) } else { 0 },
        flow_limit: choices.chance(300).then(|| choices.between(1, 40_000)),
        log: false,
        joins: choices.chance(500),
        run: choices.below(5),
        ..base
    }
}

fn psn(choices: &mut impl Choices) -> u32 {
    if choices.chance(500) { 0x00ff_ffff - choices.below(200) } else { choices.below(1 << 24) }
}
