//! `roxe sweep` with all faults on every twin of `tests/clients/sweep`, on both links: each wrong
//! twin has its finding, and no right twin has one.

use super::sweep::{TWINS, judge};
use roxe_tests::report::{self, Check};
use std::process::ExitCode;

/// All kinds of faults, and five seeds of the weakest card.
const ALL: [&str; 5] = ["--verbs", "--completions", "--events", "--packets", "--seeds=5"];

pub(crate) fn main() -> ExitCode {
    let checks = TWINS.iter().flat_map(|twins| {
        ["auto", "udp"].into_iter().flat_map(move |link| {
            [true, false].map(|wrong| {
                let side = if wrong { "wrong" } else { "right" };
                Check::new(format!("sweep: {}, {side}, link {link}", twins.name), move || {
                    judge(twins, wrong, link, &ALL)
                })
            })
        })
    });
    report::main(checks.collect())
}
