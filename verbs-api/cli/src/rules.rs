//! `roxe rules`: lists the rules of `roxe run --check`.

use crate::output::Result;
use roxe_check::Rule;
use serde_json::{Value, json};
use std::io::{Write, stdout};

/// Arguments of `roxe rules`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print a JSON array.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result {
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
