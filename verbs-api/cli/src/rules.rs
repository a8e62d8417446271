//! `roxe rules`: what the checker of `roxe run --check` looks for.

use roxe_check::Rule;
use std::error::Error;
use std::io::{Write, stdout};

/// Prints every rule: its name and severity, what it finds, where that is written.
pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    let mut out = stdout();
    for rule in Rule::ALL {
        writeln!(out, "{rule} ({})\n    {}\n    {}", rule.severity(), rule.summary(), rule.source())?;
    }
    Ok(())
}
