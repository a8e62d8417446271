//! `roxe faults PID [RULES]`: prints or replaces the fault rules of a running program.

use crate::output::{self, Result};
use crate::status::command_of;
use roxe_provider::config::fault_rules;
use roxe_provider::{Query, ask_one};
use std::time::Duration;

/// Time limit for the program to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Arguments of `roxe faults`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The program, started with `roxe run --faults`.
    pid: u32,
    /// New rules, @FILE with rules, or none. Without this argument, print the current rules.
    rules: Option<String>,
}

/// Prints each rule with the counts of its matches and effects.
pub(crate) fn run(args: &Args) -> Result {
    let rules = args.rules.as_deref().map(fault_rules).transpose()?.map(|rules| rules.to_string());
    let answer = ask_one(args.pid, &Query::Faults(rules), ANSWER_TIMEOUT)?.ok_or_else(|| {
        format!("process {} has no device of roxe open in this network namespace, or belongs to another user", args.pid)
    })?;
    let named = format!("{} (process {})", command_of(args.pid), args.pid);
    if !answer.is_whole {
        return Err(format!("{named} does not answer; if it is stopped, the rules apply once it continues").into());
    }
    let (mut counts, mut knows_query) = (Vec::new(), false);
    for line in answer.text.lines() {
        match line.split_once(' ') {
            Some(("refused", why)) => return Err(format!("{named}: {why}").into()),
            Some(("rule", count)) => counts.push(count),
            _ => knows_query |= line == "faults",
        }
    }
    if !knows_query {
        return Err(format!("{named} has an older roxe, whose rules cannot be changed").into());
    }
    output::line(if counts.is_empty() { "none".to_owned() } else { counts.join("\n") });
    Ok(())
}
