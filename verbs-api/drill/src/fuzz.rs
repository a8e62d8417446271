//! `roxe fuzz`: cases out of a seed, given to a card and to roxe's transport as its model; where
//! they differ, the case is made as short as it can be and becomes a script.
//!
//! - `generate`: cases, as lines of a script
//! - `compare`: what both show of a case, without what a card is free in
//! - `minimise`: the fewest lines that still show the difference, and the script that expects what
//!   the model does
//!
//! Beside every case runs an honest connection, whose last packet has to be acknowledged. Cases
//! follow each other fast (`Target::hurry`); what has shown a difference is done again with new
//! objects, as its script will be.

mod compare;
mod generate;
mod minimise;

use crate::run::trace::trace;
use crate::script::Script;
use crate::target::Target;
use crate::virtual_card::VirtualCard;
use compare::{Difference, compare};
use generate::Random;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How long to look, from where, and how patiently.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What all cases are made from.
    pub seed: u64,
    /// No case begins after so long.
    pub time: Duration,
    /// Nor after so many.
    pub cases: u64,
    /// For how long nothing must have come before a case is over.
    pub settle: Duration,
    /// Leave out what is known to end a kernel.
    pub spares: bool,
}

/// A way in which the card differs from the model.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What all examples of it have in common.
    pub cause: String,
    /// The seed of the case that showed it first.
    pub seed: u64,
    /// How many cases have shown it.
    pub count: u64,
    /// The shortest script: it fails with the card and passes with the model.
    pub script: String,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Cases, those made again to be shortened not counted.
    pub cases: u64,
    /// Packets sent to the card, all of them.
    pub packets: u64,
    /// How long it took, and how much of that to see findings again and to make them short.
    pub took: Duration,
    /// As said.
    pub shortening: Duration,
    /// Packets sent for that.
    pub shortening_packets: u64,
    /// Differences that did not show again: lost packets, or what new objects do not do.
    pub passing: u64,
    /// Cases of which nothing is known: the card refused what they need.
    pub refused: u64,
    /// The causes, the most frequent one first.
    pub findings: Vec<Finding>,
}

/// For how long nothing must have come, at least, before a case that has shown something is over.
const PATIENCE: Duration = Duration::from_millis(150);

/// The two that are compared.
struct Lab<'a> {
    card: &'a mut dyn Target,
    packets: u64,
    /// Cases that the card could not follow.
    refused: u64,
}

impl Lab<'_> {
    /// The difference that these lines show, if they show one.
    ///
    /// # Errors
    /// The card is gone.
    fn difference(&mut self, lines: &[String], settle: Duration) -> Result<Option<Difference>, String> {
        // A case that has lost a line on the way to be shortened may say nothing that can be done.
        let Ok(script) = Script::parse("fuzz", &lines.join("\n")) else { return Ok(None) };
        let [case] = script.cases() else { return Ok(None) };
        // A panic of roxe's transport is a finding as any other.
        let model = catch_unwind(|| trace(case, &mut VirtualCard::default(), settle));
        let Ok(model) = model else { return Ok(Some(Difference::panic())) };
        let Some(model) = model? else { return Ok(None) };
        let card = catch_unwind(AssertUnwindSafe(|| trace(case, self.card, settle)));
        let Ok(card) = card else { return Ok(Some(Difference::panic())) };
        let Some(card) = card? else {
            self.refused += 1;
            return Ok(None);
        };
        self.packets += card.sent as u64;
        Ok(compare(case, &model, &card))
    }

    /// The same, by objects that are new.
    fn difference_of_new(&mut self, lines: &[String], settle: Duration) -> Result<Option<Difference>, String> {
        self.card.renew().map_err(|refused| refused.to_string())?;
        self.difference(lines, settle)
    }

    /// The fewest of these lines that show the same as what was `found`, and how they do; nothing
    /// if it does not show again: a packet was lost then, or came late.
    ///
    /// # Errors
    /// The card is gone.
    fn shortest(
        &mut self,
        lines: &[String],
        found: &Difference,
        is_same: impl Fn(&Difference) -> bool,
        settle: Duration,
    ) -> Result<Option<(Vec<String>, Difference)>, String> {
        let patient = PATIENCE.max(settle);
        if !self.difference_of_new(lines, patient)?.is_some_and(|other| is_same(&other)) {
            return Ok(None);
        }
        let short = minimise::shorten(lines, found.qp.trim_start_matches('m'), |lines| {
            self.difference(lines, settle).map(|other| other.is_some_and(|other| is_same(&other)))
        })?;
        let sure = self.difference_of_new(&short, patient)?.filter(is_same);
        Ok(sure.map(|sure| (short, sure)))
    }
}

/// Looks for differences between `card` and the model, and tells `progress` of each new cause.
///
/// # Errors
/// The card, or its agent, is gone: the text says how, and which case was the last.
pub fn fuzz(card: &mut dyn Target, options: &Options, mut progress: impl FnMut(&Finding)) -> Result<Summary, String> {
    let start = Instant::now();
    let mut lab = Lab { card, packets: 0, refused: 0 };
    let mut found: BTreeMap<String, Finding> = BTreeMap::new();
    let mut summary = Summary::default();
    lab.card.hurry().map_err(|refused| refused.to_string())?;
    let card = lab.card.card(false).ok_or("the card has no IPv4 address")?;
    while summary.cases < options.cases && start.elapsed() < options.time {
        let seed = options.seed.wrapping_add(summary.cases);
        let mut lines = generate::case(&mut Random::new(seed));
        if options.spares {
            generate::spare(&mut lines);
        }
        if card.near[1].is_zero() {
            generate::without_stranger(&mut lines);
        }
        generate::shorten_datagrams(&mut lines, card.max_datagram);
        let gone = |why: String| format!("{why}; the last case is that of --seed {seed}");
        summary.cases += 1;
        let refused = lab.refused;
        let difference = lab.difference(&lines, options.settle).map_err(gone)?;
        summary.refused += lab.refused - refused;
        let Some(difference) = difference else { continue };
        let cause = difference.cause(service(&lines));
        if let Some(known) = found.get_mut(&cause) {
            known.count += 1;
            continue;
        }
        let (begin, sent) = (Instant::now(), lab.packets);
        let is_same = |other: &Difference| other.cause(service(&lines)) == cause;
        let shown = lab.shortest(&lines, &difference, is_same, options.settle).map_err(gone)?;
        summary.shortening += begin.elapsed();
        summary.shortening_packets += lab.packets - sent;
        let Some((short, sure)) = shown else {
            summary.passing += 1;
            continue;
        };
        let script = minimise::script(&short, &sure, &cause, seed);
        let finding = Finding { cause: cause.clone(), seed, count: 1, script };
        progress(&finding);
        found.insert(cause, finding);
    }
    summary.findings = found.into_values().collect();
    summary.findings.sort_by_key(|finding| std::cmp::Reverse(finding.count));
    (summary.packets, summary.took) = (lab.packets, start.elapsed());
    Ok(summary)
}

/// The service of the connections that misbehave.
fn service(lines: &[String]) -> &str {
    let services = lines.iter().filter_map(|line| line.strip_prefix("service "));
    services.clone().find(|service| *service != "RC").or_else(|| services.clone().next()).unwrap_or_default()
}
