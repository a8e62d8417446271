//! Parses the results of Debian's perftest programs, and saves them the time to measure the rate of
//! the processor's clock.

use crate::cc;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A line of results.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Message size in bytes.
    pub size: u64,
    /// Number of iterations, then the other columns in the order of the header.
    pub figures: Vec<f64>,
}

/// Returns the result lines in `output`: those that consist of numbers and begin with a size.
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

/// Message of perftest if it could not measure the clock rate, followed by a value such as
/// `r^2: 0.51 < 0.9`.
const NO_CLOCK_RATE: &str = "Correlation coefficient";
/// Maximum number of tries of a run that cannot measure the clock rate.
const TRIES: usize = 4;

/// Returns true if perftest could not measure the clock rate, for which one interruption between
/// reading the two clocks is enough. Then its figures are zeros, or it exits with the error "Can't
/// produce a report".
pub fn lacks_clock_rate(output: &str) -> bool {
    output.contains(NO_CLOCK_RATE)
}

/// Calls `run` until its result does not lack the clock rate, a few times at most. Returns the
/// last result.
pub fn retry_without_clock_rate<T, E>(
    mut run: impl FnMut() -> Result<T, E>,
    lacks: impl Fn(&T) -> bool,
) -> Result<T, E> {
    let mut result = run()?;
    for _ in 1..TRIES {
        if lacks(&result) {
            result = run()?;
        }
    }
    Ok(result)
}

/// Returns true if `row` of `output` has a rate or time above 0, or if the program
/// [lacks the clock rate](lacks_clock_rate) and its zeros mean nothing.
pub fn is_measured(row: &Row, output: &str) -> bool {
    lacks_clock_rate(output) || row.figures.iter().skip(1).any(|figure| *figure > 0.0)
}

/// Returns the library to preload into `program` if it is one of perftest. The library,
/// `tests/clients/perftest/clock.c`, saves perftest the measurement of the clock rate.
pub(crate) fn clock_library(program: &str) -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let is_perftest = ["ib_", "raw_ethernet_"].iter().any(|start| program.starts_with(start));
    let build = || {
        let library = cc::compile_shared("gcc", &["-shared", "-fPIC"], "perftest/clock.c", &[]);
        library.inspect_err(|why| println!("perftest has to measure the clock rate itself: {why}")).ok()
    };
    let library = || LIBRARY.get_or_init(|| cfg!(target_arch = "x86_64").then(build).flatten()).as_deref();
    is_perftest.then(library).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_without_clock_rate_is_repeated_a_few_times() {
        let run = |failures: usize| {
            let mut count = 0;
            let result = retry_without_clock_rate(
                || {
                    count += 1;
                    Ok::<_, String>(if count > failures {
                        "a report"
                    } else {
                        "Correlation coefficient r^2: 0.1 < 0.9"
                    })
                },
                |output| lacks_clock_rate(output),
            );
            (result.unwrap() == "a report", count)
        };
        assert_eq!([0, 1, 3, 9].map(run), [(true, 1), (true, 2), (true, 4), (false, TRIES)]);
        assert_eq!(retry_without_clock_rate(|| Err::<&str, _>("gone"), |_| true), Err("gone"));
    }

    #[test]
    fn zeros_count_as_measured_only_without_clock_rate() {
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
