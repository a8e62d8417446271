//! `roxe config`: every `ROXE_*` variable, from the provider's own table and from this program's.

use crate::table::Table;
use roxe_provider::config::{Knob, check, settings, variable};
use std::error::Error;
use std::io::{Write, stdout};

/// What only this program reads.
const OWN: [Knob; 2] = [
    Knob {
        name: "ROXE_LIB",
        default: "beside the program",
        help: "The shared object that `roxe run` puts in front of the system's libibverbs and librdmacm.",
    },
    Knob {
        name: "ROXE_VIEW",
        default: "on",
        help: "Show the programs of `roxe run` a /sys/class/infiniband and a /dev/infiniband: on or off.",
    },
];

/// Prints each variable with its value, and what it does below. Fails if one holds something that
/// would keep programs from starting.
pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    let mut table = Table::new(["VARIABLE", "VALUE", "FROM", "DEFAULT"]);
    let mut help = vec![""];
    for (knob, value) in
        settings().chain(OWN.iter().map(|knob| (knob, variable(knob.name).and_then(|value| value.into_string().ok()))))
    {
        let from = if value.is_some() { "environment" } else { "default" };
        let value = value.unwrap_or_else(|| knob.default.to_owned());
        table.row([knob.name, &value, from, knob.default].map(str::to_owned));
        help.push(knob.help);
    }
    let mut out = stdout();
    for (line, help) in table.lines().iter().zip(help) {
        writeln!(out, "{line}")?;
        if !help.is_empty() {
            writeln!(out, "    {help}")?;
        }
    }
    check()?;
    Ok(())
}
