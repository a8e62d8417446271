//! Lines for the person who runs the program, on standard error.

use roxe_base::cancel::uncancelled;
use roxe_base::standard_error;
use std::fmt::Display;

/// Tells the person who runs the program. A closed standard error is nobody to tell.
pub fn tell(text: &dyn Display) {
    uncancelled(|| standard_error::write(&format!("roxe: {text}\n")));
}
