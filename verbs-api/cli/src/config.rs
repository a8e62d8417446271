//! `roxe config`: lists every `ROXE_*` variable of the library and of this program.

use crate::output::{Result, Table};
use roxe_provider::config::{Knob, check, settings, variable};
use serde_json::{Value, json};
use std::io::{Write, stdout};

/// Variables that only this program reads.
const PROGRAM_KNOBS: [Knob; 2] = [
    Knob {
        name: "ROXE_LIB",
        default: "next to the program",
        help: "The shared object that `roxe run` puts before the system's libibverbs and librdmacm.",
    },
    Knob {
        name: "ROXE_VIEW",
        default: "on",
        help: "Show the programs of `roxe run` a /sys/class/infiniband and a /dev/infiniband: on or off.",
    },
];

/// Arguments of `roxe config`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print a JSON array.
    #[arg(long)]
    json: bool,
}

/// Prints the variables. Fails if the value of a variable would keep programs from starting.
pub(crate) fn run(args: &Args) -> Result {
    let own = PROGRAM_KNOBS.iter().map(|knob| (knob, variable(knob.name).and_then(|value| value.into_string().ok())));
    let rows = settings().chain(own).map(|(knob, value)| {
        let from = if value.is_some() { "environment" } else { "default" };
        (knob, value.unwrap_or_else(|| knob.default.to_owned()), from)
    });
    let mut out = stdout();
    if args.json {
        let rows = rows.map(|(Knob { name, default, help }, value, from)| {
            json!({"name": name, "value": value, "from": from, "default": default, "help": help})
        });
        writeln!(out, "{:#}", rows.collect::<Value>())?;
        return Ok(check()?);
    }
    let mut table = Table::new(["VARIABLE", "VALUE", "FROM", "DEFAULT"]);
    let mut help = vec![""];
    for (knob, value, from) in rows {
        table.row([knob.name, &value, from, knob.default].map(str::to_owned));
        help.push(knob.help);
    }
    for (line, help) in table.lines().iter().zip(help) {
        writeln!(out, "{line}")?;
        if !help.is_empty() {
            writeln!(out, "    {help}")?;
        }
    }
    Ok(check()?)
}
