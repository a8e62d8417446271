//! Runs `roxe sweep` with all faults on every program of `tests/clients/sweep`, on both links: each
//! wrong program has its finding, and no right program has one.

use super::sweep::{MISTAKES, judge};
use roxe_tests::report::{self, Check};
use std::process::ExitCode;

/// All kinds of faults, and five seeds of the weakest card.
const ALL: [&str; 5] = ["--verbs", "--completions", "--events", "--packets", "--seeds=5"];

pub(crate) fn main() -> ExitCode {
    let checks = MISTAKES.iter().flat_map(|mistake| {
        ["auto", "udp"].into_iter().flat_map(move |link| {
            [true, false].map(|wrong| {
                let side = if wrong { "wrong" } else { "right" };
                Check::new(format!("sweep: {}, {side}, link {link}", mistake.name), move || {
                    judge(mistake, wrong, link, &ALL)
                })
            })
        })
    });
    report::main(checks.collect())
}
