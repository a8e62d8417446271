//! Messages to the user on standard error.

use roxe_base::cancel::uncancelled;
use roxe_base::standard_error;
use std::fmt::Display;

/// Prints a message; a closed standard error is ignored.
pub fn print(text: &dyn Display) {
    uncancelled(|| standard_error::write(&format!("roxe: {text}\n")));
}
