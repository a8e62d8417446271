//! Debian's perftest programs: reads their result table, and saves the time in which they learn the
//! rate of the processor's clock.

use crate::cc;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// One line of results: the message size and the columns after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Message bytes.
    pub size: u64,
    /// Iterations, then the figures in the order the header names them.
    pub figures: Vec<f64>,
}

/// The result lines in `output`: those that consist of numbers only and begin with a size.
pub fn rows(output: &str) -> Vec<Row> {
    output.lines().filter_map(row).collect()
}

fn row(line: &str) -> Option<Row> {
    let numbers: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
    let numbers = numbers?;
    let (size, figures) = numbers.split_first()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes are small whole numbers")]
    let size = (figures.len() >= 3 && *size >= 1.0 && size.fract() == 0.0).then_some(*size as u64)?;
    Some(Row { size, figures: figures.to_vec() })
}

/// perftest prints this, with a value such as `r^2: 0.51 < 0.9`, if it could not measure the clock
/// rate.
const NO_CLOCK: &str = "Correlation coefficient";
/// Maximum number of tries of a run that fails for that reason.
const TRIES: usize = 4;

/// Returns true if perftest could not measure the clock rate: one sample that is interrupted
/// between reading the two clocks is enough. Then its figures are zeros, or it exits with an error
/// ("Can't produce a report").
pub fn lacks_clock(output: &str) -> bool {
    output.contains(NO_CLOCK)
}

/// Repeats a run while its result `lacks` the clock rate; returns the last result.
pub fn with_clock<T, E>(mut run: impl FnMut() -> Result<T, E>, lacks: impl Fn(&T) -> bool) -> Result<T, E> {
    let mut result = run()?;
    for _ in 1..TRIES {
        if lacks(&result) {
            result = run()?;
        }
    }
    Ok(result)
}

/// Returns true if `row` of `output` has rates or times, not only zeros. Zeros of a program that
/// [lacks the clock rate](lacks_clock) say nothing about the messages.
pub fn is_measured(row: &Row, output: &str) -> bool {
    lacks_clock(output) || row.figures.iter().skip(1).any(|figure| *figure > 0.0)
}

/// The library to preload to `program`, if that is one of perftest, so that it need not learn how
/// fast the processor's clock is: `tests/clients/perftest/clock.c`.
pub(crate) fn clock(program: &str) -> Option<&'static Path> {
    static CLOCK: OnceLock<Option<PathBuf>> = OnceLock::new();
    let is_perftest = ["ib_", "raw_ethernet_"].iter().any(|start| program.starts_with(start));
    let build = || {
        let clock = cc::kept("gcc", &["-shared", "-fPIC"], "perftest/clock.c", &[]);
        clock.inspect_err(|why| println!("perftest has to learn the clock's rate itself: {why}")).ok()
    };
    let clock = || CLOCK.get_or_init(|| cfg!(target_arch = "x86_64").then(build).flatten()).as_deref();
    is_perftest.then(clock).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_without_clock_rate_is_repeated_a_few_times() {
        let run = |failures: usize| {
            let mut count = 0;
            let result = with_clock(
                || {
                    count += 1;
                    Ok::<_, String>(if count > failures {
                        "a report"
                    } else {
                        "Correlation coefficient r^2: 0.1 < 0.9"
                    })
                },
                |output| lacks_clock(output),
            );
            (result.unwrap() == "a report", count)
        };
        assert_eq!([0, 1, 3, 9].map(run), [(true, 1), (true, 2), (true, 4), (false, TRIES)]);
        assert_eq!(with_clock(|| Err::<&str, _>("gone"), |_| true), Err("gone"));
    }

    #[test]
    fn zeros_are_measured_only_without_a_learned_clock() {
        let zeros = " 1024       50               0.00               0.00   \t\t   0.000000\n";
        let rows = rows(zeros);
        assert!(!is_measured(&rows[0], zeros));
        assert!(is_measured(&rows[0], &format!("Correlation coefficient r^2: 0.513067 < 0.9\n{zeros}")));
    }

    #[test]
    fn perftest_rows_are_parsed() {
        let text = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                    65536      1000             2500.50            2400.25\t\t   0.038404\n local address: LID 0000\n";
        assert_eq!(rows(text), vec![Row { size: 65536, figures: vec![1000.0, 2500.50, 2400.25, 0.038404] }]);
    }
}
