//! Runs one case of a script against a target. `near` has the steps of the near side, `peer` the
//! steps of the far side, `state` the state between steps. `trace` runs a case without a verdict.

mod near;
mod peer;
mod state;
pub(crate) mod trace;

use crate::figures::{Figure, Unit};
use crate::log::Log;
use crate::script::Case;
use crate::script::steps::{Line, Step};
use crate::target::Target;
use state::{Run, Stop};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Maximum number of steps of a case; a repeated step counts each time.
const MAX_STEPS: usize = 100_000;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Verdict on the card.
    pub verdict: Verdict,
    /// All packets.
    pub log: Log,
    /// Longest delay of the judge; a late judge may change the card's behaviour.
    pub late: Duration,
    /// Figures that the script measured.
    pub figures: Vec<Figure>,
}

/// Resets the target and runs `case` of the script `name`.
pub fn run(name: &str, case: &Case, target: &mut dyn Target) -> Outcome {
    let early = |verdict| Outcome { verdict, log: Log::default(), late: Duration::ZERO, figures: Vec::new() };
    let Some(ipv6) = case.is_ipv6.iter().copied().find(|ipv6| target.card(*ipv6).is_some()) else {
        return early(Verdict::Unsupported("the card has no address of this family".into()));
    };
    if let Err(refused) = target.begin(ipv6) {
        let (at, expected, received) = (name.into(), "a usable target".into(), refused.to_string());
        return early(Verdict::Inconclusive(Failure { at, expected, received, ..Failure::default() }));
    }
    let Some(card) = target.card(ipv6) else {
        return early(Verdict::Unsupported("the card has lost its address".into()));
    };
    let mut run = Run::new(target, card, case);
    // The transport of a virtual card may panic; the next case gets a new virtual card.
    let verdict = match catch_unwind(AssertUnwindSafe(|| run.run_case(&case.lines))) {
        Ok(Ok(())) => Verdict::Pass,
        Ok(Err((line, stop))) => run.verdict(name, line, stop),
        Err(_) => {
            let (expected, received) = ("the virtual card does not panic".into(), "a panic".into());
            run.verdict(name, None, Stop::Differs { expected, received })
        }
    };
    Outcome { verdict, log: run.log, late: run.late, figures: run.figures }
}

impl Run<'_> {
    fn run_case<'l>(&mut self, lines: &'l [Line]) -> Result<(), (Option<&'l Line>, Stop)> {
        self.run_lines(lines).map_err(|(line, stop)| (Some(line), stop))?;
        // A packet that no step expected fails the case.
        let now = self.target.now();
        let expected = "no packet after the last step";
        let last = lines.last().map(|line| &line.step);
        let forbids_cnps = matches!(last, Some(Step::Silence { forbids_cnps: true, .. }));
        self.expect_silence(now, forbids_cnps, expected).map_err(|stop| (lines.last(), stop))
    }

    fn run_lines<'l>(&mut self, lines: &'l [Line]) -> Result<(), (&'l Line, Stop)> {
        for line in lines {
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return Err((line, Stop::Script("the script has too many steps".into())));
            }
            if let Step::Repeat(count, inside) = &line.step {
                let count = count.value(&self.names).map_err(|text| (line, Stop::Script(text)))?;
                for index in 0..count {
                    self.names.insert("i".into(), index);
                    self.objects.index = index;
                    self.run_lines(inside)?;
                }
                continue;
            }
            self.run_step(&line.step).map_err(|stop| (line, stop))?;
        }
        Ok(())
    }

    fn run_step(&mut self, step: &Step) -> Result<(), Stop> {
        match step {
            Step::Send(spec) => self.send(spec),
            Step::Expect(expectation) => self.expect(expectation),
            Step::Silence { time, forbids_cnps } => {
                let until = self.target.now() + self.time(time)?;
                self.expect_silence(until, *forbids_cnps, &format!("silence {time}"))
            }
            Step::Wait(time) => self.pass(time),
            Step::Let(name, number) => {
                let value = number.value(&self.names)?;
                self.names.insert(name.clone(), value);
                Ok(())
            }
            Step::Count(count) => self.count(count),
            Step::Figure(figure) => {
                let value = match figure.unit {
                    Unit::Time => figure.number.time(&self.names)?,
                    Unit::Number => figure.number.quotient(&self.names)?,
                };
                if let Some(value) = value {
                    self.figures.push(Figure { name: figure.name.clone(), unit: figure.unit, value });
                }
                Ok(())
            }
            Step::Peer(peer) => self.peer(peer),
            Step::Repeat(..) => Ok(()),
        }
    }

    fn verdict(&mut self, name: &str, line: Option<&Line>, stop: Stop) -> Verdict {
        let failure = |expected, received| Failure {
            at: line.map_or_else(|| name.to_owned(), |line| format!("{name}:{}", line.number)),
            step: line.map_or_else(String::new, |line| line.text.clone()),
            expected,
            received,
            packets: self.log.format_newest(),
        };
        match stop {
            Stop::Differs { expected, received } => Verdict::Fail(failure(expected, received)),
            Stop::Unsupported(text) => Verdict::Unsupported(text),
            Stop::Refused(refused) if refused.is_unsupported() => Verdict::Unsupported(refused.to_string()),
            Stop::Refused(refused) if refused.errno == 0 => {
                Verdict::Inconclusive(failure("a usable target".into(), refused.to_string()))
            }
            Stop::Refused(refused) => Verdict::Fail(failure("the verb succeeds".into(), refused.to_string())),
            Stop::Script(text) => Verdict::Inconclusive(failure("a valid script".into(), text)),
        }
    }
}

/// The verdict on a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The card behaved as the script expects.
    Pass,
    /// The card behaved differently.
    Fail(Failure),
    /// The card behaved differently, as a known deviation with this reason.
    Tolerated(String, Failure),
    /// The card lacks a feature that the case needs.
    Unsupported(String),
    /// The script or the path to the card failed.
    Inconclusive(Failure),
}

impl Verdict {
    /// Returns the verdict as one word.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail(_) => "FAIL",
            Self::Tolerated(..) => "tolerated",
            Self::Unsupported(_) => "unsupported",
            Self::Inconclusive(_) => "inconclusive",
        }
    }

    /// Returns true for `Pass`, `Tolerated` and `Unsupported`.
    pub const fn is_good(&self) -> bool {
        matches!(self, Self::Pass | Self::Tolerated(..) | Self::Unsupported(_))
    }

    /// Returns the failure, if there is one.
    pub const fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Fail(failure) | Self::Tolerated(_, failure) | Self::Inconclusive(failure) => Some(failure),
            Self::Pass | Self::Unsupported(_) => None,
        }
    }
}

/// A difference between a card and a script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// File and line.
    pub at: String,
    /// Text of the line.
    pub step: String,
    /// Expectation of the script.
    pub expected: String,
    /// Behaviour of the card.
    pub received: String,
    /// The newest packets, one per line.
    pub packets: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, step, expected, received, packets } = self;
        write!(f, "{at}: {step}\n    expected: {expected}\n    received: {received}")?;
        if packets.is_empty() { Ok(()) } else { write!(f, "\n  packets, `>` to the card:\n{}", packets.trim_end()) }
    }
}
