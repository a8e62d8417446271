//! Lines on standard output while something goes on.

use std::fmt::Display;
use std::io::{Write as _, stdout};
use std::process;

/// Prints a line. Where nobody reads any more, as behind `head`, there is no reason to go on: the
/// program ends, as successfully as it does where it finds that out at its end.
pub(crate) fn line(text: impl Display) {
    if writeln!(stdout().lock(), "{text}").is_err() {
        process::exit(0);
    }
}
