//! `roxe counters`: what devices count. Touches nothing.

use crate::table::Table;
use roxe_provider::Counters;
use std::error::Error;
use std::io::{Write, stdout};

/// Prints the list.
pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    let mut table = Table::new(["COUNTER", "COUNTS"]);
    Counters::legend().into_iter().for_each(|(name, words)| table.row([name.to_owned(), words]));
    Ok(write!(stdout(), "{table}")?)
}
