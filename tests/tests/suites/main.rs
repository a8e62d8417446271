//! Suites of checks that run programs, grouped by subject.
//!
//! ```text
//! cargo test -p roxe-tests --test suites -- [SUITE|SUITE,SUITE...|GROUP] [OPTION...] [WORD...]
//! ```
//!
//! A GROUP stands for all of its suites. Without arguments every suite runs. Of several suites,
//! each runs in its own process. `--fail-fast` stops at the first failed check; the modules
//! document other options. A WORD picks the checks whose name contains it.

use roxe_tests::allocator::WatchedAllocator;
use roxe_tests::build;
use roxe_tests::guest::link;
use roxe_tests::report;
use std::process::{Command, ExitCode};

#[global_allocator]
static ALLOCATOR: WatchedAllocator = WatchedAllocator::new();

mod protocol {
    pub(crate) mod conform;
    pub(crate) mod kernel_rxe;
}

mod verbs {
    pub(crate) mod asyncwatch;
    pub(crate) mod cancel;
    pub(crate) mod cells;
    pub(crate) mod pyverbs;
    pub(crate) mod raw_ethernet;
}

mod connections {
    pub(crate) mod rdmacm_clients;
    pub(crate) mod rsockets;
}

mod programs {
    pub(crate) mod crates;
    pub(crate) mod field_programs;
    pub(crate) mod middleware;
    pub(crate) mod mpi;
    pub(crate) mod stock_clients;
    pub(crate) mod tutorials;
    pub(crate) mod weakest_programs;
}

mod tools {
    pub(crate) mod beginners;
    pub(crate) mod checked_programs;
    pub(crate) mod explanations;
    pub(crate) mod faults;
    pub(crate) mod install;
    pub(crate) mod lab;
    pub(crate) mod manual;
    pub(crate) mod misuse;
    pub(crate) mod sweep;
    pub(crate) mod sweep_twins;
    pub(crate) mod trace;
    pub(crate) mod view;
}

mod security {
    pub(crate) mod ways;
}

mod robustness {
    pub(crate) mod environment;
    pub(crate) mod kills;
    pub(crate) mod users;
}

mod speed {
    pub(crate) mod allocations;
    pub(crate) mod instructions;
    pub(crate) mod running_cost;
}

struct Suite {
    group: &'static str,
    name: &'static str,
    main: fn() -> ExitCode,
    /// True if [`run`] calls [`alone`] for the suite.
    is_alone: bool,
}

macro_rules! suites {
    ($($group:ident::$name:ident $is_alone:literal),* $(,)?) => {
        &[$(Suite {
            group: stringify!($group),
            name: stringify!($name),
            main: $group::$name::main,
            is_alone: $is_alone,
        }),*]
    };
}

/// Suites with `false` need the network first or restart their own program. Most of them call
/// [`alone`] later.
const SUITES: &[Suite] = suites![
    protocol::conform true,
    protocol::kernel_rxe false,
    verbs::asyncwatch true,
    verbs::cancel true,
    verbs::cells true,
    verbs::pyverbs true,
    verbs::raw_ethernet true,
    connections::rdmacm_clients true,
    connections::rsockets true,
    programs::crates false,
    programs::field_programs true,
    programs::middleware true,
    programs::mpi true,
    programs::stock_clients true,
    programs::tutorials true,
    programs::weakest_programs true,
    tools::beginners true,
    tools::checked_programs true,
    tools::manual true,
    tools::explanations true,
    tools::faults true,
    tools::install true,
    tools::lab false,
    tools::misuse true,
    tools::sweep true,
    tools::sweep_twins true,
    tools::trace true,
    tools::view true,
    security::ways true,
    robustness::environment false,
    robustness::kills false,
    robustness::users true,
    speed::allocations true,
    speed::instructions true,
    speed::running_cost true,
];

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        println!("cargo test -p roxe-tests --test suites -- [SUITE|SUITE,SUITE...|GROUP] [--fail-fast] [WORD...]\n");
        SUITES.iter().for_each(|suite| println!("  {:<12} {}", suite.group, suite.name));
        return ExitCode::SUCCESS;
    }
    let Some(first) = words.first().filter(|word| !word.starts_with('-')).cloned() else {
        return each(SUITES.iter().collect(), &words);
    };
    if let Some(suite) = SUITES.iter().find(|suite| suite.name == first) {
        return run(suite);
    }
    words.remove(0);
    let mut chosen = Vec::new();
    for word in first.split(',') {
        let before = chosen.len();
        chosen.extend(SUITES.iter().filter(|suite| suite.name == word || suite.group == word));
        if chosen.len() == before {
            eprintln!("no suite or group is called {word}; there are:");
            SUITES.iter().for_each(|suite| eprintln!("  {} {}", suite.group, suite.name));
            return ExitCode::from(2);
        }
    }
    each(chosen, &words)
}

fn run(suite: &Suite) -> ExitCode {
    if suite.is_alone { alone(suite.name, suite.main) } else { (suite.main)() }
}

/// Runs the checks of a suite, as root in a network namespace of their own.
pub(crate) fn alone(suite: &str, checks: impl FnOnce() -> ExitCode) -> ExitCode {
    // Build first: a build may fetch crates, and the namespace has no network.
    if !build::is_built() {
        build::roxe();
    }
    match link::isolate() {
        Ok(()) => checks(),
        Err(e) => {
            println!("FAILED   {suite}: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Runs suites one after the other with the same options and words.
fn each(suites: Vec<&Suite>, words: &[String]) -> ExitCode {
    let mut failed = Vec::new();
    for suite in suites {
        println!("== {}", suite.name);
        let child = std::env::current_exe().and_then(|own| Command::new(own).arg(suite.name).args(words).status());
        if child.is_ok_and(|status| status.success()) {
            continue;
        }
        failed.push(suite.name);
        if words.iter().any(|word| word == report::FAIL_FAST) {
            break;
        }
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed: {}", failed.join(", "));
    ExitCode::FAILURE
}
