//! Lines for the person who runs the program, on standard error.

use roxe_base::cancel::uncancelled;
use std::fmt::Display;
use std::io::Write;

/// Tells the person who runs the program. A closed standard error is nobody to tell.
pub fn tell(text: &dyn Display) {
    let _ = uncancelled(|| writeln!(std::io::stderr(), "roxe: {text}"));
}
