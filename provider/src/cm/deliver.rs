//! What a program is told of what happened in the machine.

use super::agent::Session;
use roxe_transport::cm::Event;

/// Tells the program what happened; the machine's verbs may be called from here.
pub(super) fn deliver(_session: &mut Session<'_>, _event: Event) {}
