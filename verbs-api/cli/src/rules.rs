//! `roxe rules`: what the checker of `roxe run --check` looks for.

use roxe_check::Rule;
use serde_json::{Value, json};
use std::error::Error;
use std::io::{Write, stdout};

/// What `roxe rules` was asked to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print a JSON array.
    #[arg(long)]
    json: bool,
}

/// Prints every rule: its name and severity, what it finds, where that is written.
pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let mut out = stdout();
    if args.json {
        let rules = Rule::ALL.iter().map(|rule| {
            let (name, severity) = (rule.to_string(), rule.severity().to_string());
            json!({"name": name, "severity": severity, "summary": rule.summary(), "source": rule.source()})
        });
        writeln!(out, "{:#}", rules.collect::<Value>())?;
        return Ok(());
    }
    for rule in Rule::ALL {
        writeln!(out, "{rule} ({})\n    {}\n    {}", rule.severity(), rule.summary(), rule.source())?;
    }
    Ok(())
}
