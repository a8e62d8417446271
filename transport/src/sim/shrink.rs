//! From a run that fails to the smallest one that fails in the same way.
//!
//! May touch: [`super::case`] and the faults that the network recorded. What was random in the
//! failing run is first made explicit, fault by fault; then connections, messages and faults are
//! left out as long as the same promise is broken (delta debugging: halves first, then ever smaller
//! parts). The result is a [`Case`], whose text repeats it.

use super::case::{Case, Failure, Prepare};
use super::promise::Broken;
use super::wire::Fault;
use crate::fault::{Action, Hold, Part, QpSelector, Rule, Rules, Spans};
use core::fmt;
use core::time::Duration;
use roxe_wire::icrc;

/// Runs that shrinking may take.
const BUDGET: u32 = 2000;

/// The smallest failing run that was found.
#[derive(Clone, Debug)]
pub struct Smallest {
    /// The run.
    pub case: Case,
    /// What it breaks.
    pub broken: Broken,
    /// Runs it took.
    pub runs: u32,
}

impl fmt::Display for Smallest {
    /// What is broken, and the text to paste.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nthe smallest run that does it (found in {} runs):\n{}", self.broken, self.runs, self.case)
    }
}

/// Shrinks `case`, which failed with `failure` after `prepare`.
pub fn shrink(case: &Case, failure: &Failure, prepare: Prepare<'_>) -> Smallest {
    let mut search = Search { prepare, broken: failure.broken.clone(), runs: 0 };
    let mut case = case.clone();
    search.leave_out_connections(&mut case, None);
    search.leave_out_messages(&mut case, None);
    let Some(mut faults) = search.faults_of(&case) else { return search.found(case) };
    for _ in 0..2 {
        search.leave_out(&mut faults, |search, rest| search.fails(&case, Some(rest)));
        search.leave_out_connections(&mut case, Some(&faults));
        search.leave_out_messages(&mut case, Some(&faults));
    }
    let explicit = Case { rules: rules_of(&faults), ..case.clone() };
    // Rules are as exact as faults but for the bit that is damaged; and there may be more faults
    // than rules can be.
    if search.fails(&explicit, None) { search.found(explicit) } else { search.found(case) }
}

struct Search<'a> {
    prepare: Prepare<'a>,
    broken: Broken,
    runs: u32,
}

impl Search<'_> {
    fn found(self, case: Case) -> Smallest {
        Smallest { case, broken: self.broken, runs: self.runs }
    }

    /// Whether the run still breaks the promise, with these faults instead of its rules if there
    /// are any.
    fn fails(&mut self, case: &Case, faults: Option<&[Fault]>) -> bool {
        self.failure(case, faults).is_some()
    }

    fn failure(&mut self, case: &Case, faults: Option<&[Fault]>) -> Option<Box<Failure>> {
        if self.runs >= BUDGET {
            return None;
        }
        self.runs += 1;
        let prepare = self.prepare;
        let failure = case
            .play(&|world| {
                if let Some(faults) = faults {
                    world.wire.repeat_faults(faults);
                }
                prepare(world);
            })
            .err()?;
        if failure.broken.promise != self.broken.promise {
            return None;
        }
        self.broken.clone_from(&failure.broken);
        Some(failure)
    }

    /// The faults of a run, as exact as rules can be; `None` if they alone do not make it fail.
    fn faults_of(&mut self, case: &Case) -> Option<Vec<Fault>> {
        let faults: Vec<Fault> = self.failure(case, None)?.faults.into_iter().map(rounded).collect();
        self.fails(case, Some(&faults)).then_some(faults)
    }

    fn leave_out_connections(&mut self, case: &mut Case, faults: Option<&[Fault]>) {
        let mut only = case.only.clone().unwrap_or_else(|| (0..case.connections).collect());
        let of = |case: &Case, only: &[usize]| Case { only: Some(only.to_vec()), ..case.clone() };
        self.leave_out(&mut only, |search, rest| !rest.is_empty() && search.fails(&of(case, rest), faults));
        *case = of(case, &only);
    }

    fn leave_out_messages(&mut self, case: &mut Case, faults: Option<&[Fault]>) {
        let mut step = case.work.messages / 2;
        while step > 0 {
            let mut fewer = case.clone();
            fewer.work.messages -= step.min(fewer.work.messages - 1);
            if fewer.work.messages < case.work.messages && self.fails(&fewer, faults) {
                *case = fewer;
            } else {
                step /= 2;
            }
        }
    }

    /// Takes parts out of `list` as long as the rest still fails: large parts first, then smaller
    /// ones, at last each.
    fn leave_out<T: Clone>(&mut self, list: &mut Vec<T>, fails: impl Fn(&mut Self, &[T]) -> bool) {
        let mut part = list.len();
        while part > 0 {
            let mut at = 0;
            while at < list.len() {
                let end = (at + part).min(list.len());
                let rest = [&list[..at], &list[end..]].concat();
                if fails(self, &rest) {
                    *list = rest;
                } else {
                    at = end;
                }
            }
            part = part.min(list.len()) / 2;
        }
    }
}

/// The fault with the times that rules can tell.
fn rounded(mut fault: Fault) -> Fault {
    let whole = |time: Duration| Duration::from_micros(u64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(0));
    fault.verdict.delay = whole(fault.verdict.delay);
    fault.verdict.copies_after = whole(fault.verdict.copies_after);
    fault
}

/// Rules that do exactly this.
pub(crate) fn rules_of(faults: &[Fault]) -> Rules {
    Rules::new(None, faults.iter().flat_map(rules_of_one).collect())
}

fn rules_of_one(fault: &Fault) -> impl Iterator<Item = Rule> {
    let (verdict, end) = (fault.verdict, u32::try_from(fault.end).unwrap_or(u32::MAX));
    let twice = Action::Duplicate { copies: verdict.copies, after: Hold::exactly(verdict.copies_after) };
    let actions = [
        verdict.drop.then_some(Action::Drop),
        (verdict.copies > 0).then_some(twice),
        (!verdict.delay.is_zero()).then_some(Action::Delay(Hold::exactly(verdict.delay))),
        verdict.corrupt.map(|corruption| Action::Corrupt(part_of(fault, corruption.at.into()))),
        verdict.mark_ce.then_some(Action::Ecn),
        verdict.rnr.then_some(Action::Rnr),
        verdict.forged.map(Action::Forge),
    ];
    let (fault, dir) = (*fault, Some(fault.dir));
    actions.into_iter().flatten().map(move |action| {
        // A rule counts the packets that its action means something for.
        let nth = match action {
            Action::Corrupt(Part::Payload) => fault.nth.loaded,
            Action::Rnr => fault.nth.received,
            _ => fault.nth.all,
        };
        Rule { dir, qp: Some(QpSelector::Ordinal(end)), nth: Spans::new(vec![(nth, nth)]), ..Rule::new(action) }
    })
}

/// Which part of its packet a fault damaged; the pad counts as payload.
fn part_of(fault: &Fault, at: usize) -> Part {
    match at {
        at if at < fault.header => Part::Header,
        at if at + icrc::LEN < fault.len => Part::Payload,
        _ => Part::Icrc,
    }
}
