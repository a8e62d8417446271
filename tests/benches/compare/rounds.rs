//! Runs the rounds. Each round runs every line once, so that a slow minute of the machine affects
//! all lines.

use crate::line::Line;
use crate::work::{self, Sample};
use roxe_tests::measure::Series;
use roxe_tests::measure::load::{Disturbance, Interval};
use std::time::{Duration, Instant};

/// Number of failures after which a line is skipped.
const MAX_FAILURES: usize = 2;

/// Multiple of the run's time after which the run ends, even with too few rounds.
const OVERTIME: u32 = 3;

/// Runs a line once with about this number of messages. Returns the figure, or the error.
pub(crate) type Once<'a> = dyn FnMut(&Line, u64) -> Result<Sample, String> + 'a;

/// Time and number of rounds of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounds {
    /// Time of the run.
    pub(crate) time: Duration,
    /// Time of one figure, without starting and ending programs.
    pub(crate) each: Duration,
    /// Least number of rounds.
    pub(crate) least: usize,
    /// Largest number of rounds.
    pub(crate) most: usize,
    /// Id of another process whose work is part of the benchmark.
    pub(crate) server: Option<u32>,
}

/// Figures of one line.
pub(crate) struct Measured {
    pub(crate) line: Line,
    /// Undisturbed figures.
    pub(crate) clean: Series,
    /// Figures during which other processes used too much of the machine.
    pub(crate) disturbed: Series,
    /// Averages of times, disturbed or not.
    pub(crate) averages: Series,
    /// 99th and 99.9th percentiles of times, disturbed or not.
    pub(crate) tails: [Series; 2],
    /// Processor time of a message in microseconds: of both sides, user and system.
    pub(crate) costs: Series,
    /// Largest share of the processors that other processes used during an undisturbed figure.
    pub(crate) others: f64,
    /// The error of each failed run.
    pub(crate) failures: Vec<String>,
    /// Number of messages of the next run.
    messages: u64,
    /// Number of messages of the first run, and its processor time in seconds.
    first: Option<(u64, f64)>,
}

impl Measured {
    fn new(line: Line) -> Self {
        let messages = work::first_guess(&line);
        let [clean, disturbed, averages, p99, p999, costs] = [const { Series::new() }; 6];
        let (tails, failures) = ([p99, p999], Vec::new());
        Self { line, clean, disturbed, averages, tails, costs, others: 0.0, failures, messages, first: None }
    }

    /// Returns the undisturbed figures, or all if there are none.
    pub(crate) fn counting(&self) -> &Series {
        if self.clean.is_empty() { &self.disturbed } else { &self.clean }
    }

    /// Returns true if all figures were disturbed.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.clean.is_empty() && !self.disturbed.is_empty()
    }

    fn has_failed(&self) -> bool {
        self.failures.len() >= MAX_FAILURES
    }

    /// Runs the line once with the number of messages that the previous run suggests.
    fn run(&mut self, rounds: &Rounds, once: &mut Once<'_>) -> Option<(Sample, Disturbance)> {
        let run_start = Instant::now();
        let measured = Interval::begin(rounds.server).map_err(|e| e.to_string()).and_then(|interval| {
            let sample = once(&self.line, self.messages)?;
            Ok((sample, interval.end().map_err(|e| e.to_string())?))
        });
        match measured {
            Ok((sample, load)) => {
                self.record_cost(load.own);
                self.messages = work::messages(&self.line, sample, (self.messages, run_start.elapsed()), rounds.each);
                Some((sample, load))
            }
            Err(why) => {
                eprintln!("FAILED   {}\n{why}", self.line);
                self.failures.push(why);
                // The run may have failed because of too many messages for its time limit.
                self.messages = (self.messages / 8).max(64);
                None
            }
        }
    }

    /// Records the processor time of a message: the difference to the first run, which had few
    /// messages, because programs need much time to start and end.
    fn record_cost(&mut self, seconds: f64) {
        let Some(pairs) = self.line.work.counting_pairs() else { return };
        let (fewest, least) = *self.first.get_or_insert((self.messages, seconds));
        if self.messages >= 2 * fewest {
            #[expect(clippy::cast_precision_loss, reason = "five million at most, of a few pairs")]
            let more = (pairs * (self.messages - fewest)) as f64;
            self.costs.push((seconds - least) * 1e6 / more);
        }
    }

    /// Runs the line and records its figures. Returns true if the run was disturbed.
    fn measure(&mut self, rounds: &Rounds, once: &mut Once<'_>) -> bool {
        let Some((Sample { figure, average, tails }, load)) = self.run(rounds, once) else { return false };
        if let Some(average) = average {
            self.averages.push(average);
        }
        for (series, tail) in self.tails.iter_mut().zip(tails.into_iter().flatten()) {
            series.push(tail);
        }
        if load.disturbs() {
            self.disturbed.push(figure);
            if self.clean.is_empty() {
                self.others = self.others.max(load.used + load.stolen);
            }
            return true;
        }
        if self.clean.is_empty() {
            self.others = 0.0;
        }
        self.clean.push(figure);
        self.others = self.others.max(load.used + load.stolen);
        false
    }
}

/// Measures the lines in as many rounds as the time allows.
pub(crate) fn run(lines: Vec<Line>, rounds: &Rounds, once: &mut Once<'_>) -> Vec<Measured> {
    let (run_start, mut all): (_, Vec<Measured>) = (Instant::now(), lines.into_iter().map(Measured::new).collect());
    // A warm-up run, which also finds the number of messages that fill the time.
    all.iter_mut().for_each(|line| _ = line.run(rounds, once));
    report_progress(0, run_start);
    for round in 1..=rounds.most {
        let start = Instant::now();
        let mut again = Vec::new();
        for (index, line) in all.iter_mut().enumerate().filter(|(_, line)| !line.has_failed()) {
            if line.measure(rounds, once) {
                again.push(index);
            }
        }
        // Each round repeats disturbed runs once.
        for index in again {
            all[index].measure(rounds, once);
        }
        report_progress(round, run_start);
        let next = run_start.elapsed() + start.elapsed();
        if round >= rounds.least && next > rounds.time || next > rounds.time * OVERTIME {
            break;
        }
    }
    all
}

fn report_progress(round: usize, run_start: Instant) {
    eprintln!("round {round} done after {:.0} s", run_start.elapsed().as_secs_f32());
}
