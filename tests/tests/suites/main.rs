//! Suites of checks that start programs, by what they judge.
//!
//! ```text
//! cargo test -p roxe-tests --test suites -- [SUITE|SUITE,SUITE...|GROUP] [OPTION...] [WORD...]
//! ```
//!
//! Without arguments every suite runs, with the name of a group those of the group, several each in
//! a process of its own. A suite's own options are in its module; `--fail-fast` ends all at the
//! first check that fails. A WORD picks the checks whose name contains it.

use roxe_tests::allocator::WatchedAllocator;
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
    pub(crate) mod examples;
    pub(crate) mod explanations;
    pub(crate) mod faults;
    pub(crate) mod install;
    pub(crate) mod misuse;
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
}

macro_rules! suites {
    ($($group:ident::$name:ident),* $(,)?) => {
        &[$(Suite { group: stringify!($group), name: stringify!($name), main: $group::$name::main }),*]
    };
}

const SUITES: &[Suite] = suites![
    protocol::conform,
    protocol::kernel_rxe,
    verbs::asyncwatch,
    verbs::cancel,
    verbs::cells,
    verbs::pyverbs,
    verbs::raw_ethernet,
    connections::rdmacm_clients,
    connections::rsockets,
    programs::crates,
    programs::field_programs,
    programs::middleware,
    programs::mpi,
    programs::stock_clients,
    programs::tutorials,
    programs::weakest_programs,
    tools::beginners,
    tools::checked_programs,
    tools::examples,
    tools::explanations,
    tools::faults,
    tools::install,
    tools::misuse,
    tools::trace,
    tools::view,
    security::ways,
    robustness::environment,
    robustness::kills,
    robustness::users,
    speed::allocations,
    speed::instructions,
    speed::running_cost,
];

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let Some(first) = words.first().filter(|word| !word.starts_with('-')).cloned() else {
        return each(SUITES.iter().collect(), &words);
    };
    if let Some(suite) = SUITES.iter().find(|suite| suite.name == first) {
        return (suite.main)();
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

/// Runs suites one after the other, all with the same options and words.
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
