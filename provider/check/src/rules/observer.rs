//! What a rule is for whoever shows it events.

use crate::event::Event;
use crate::report::Report;
use crate::stack::Stack;
use crate::world::World;

/// Something that looks at events for one subject.
pub(super) trait Observer: std::fmt::Debug + Send {
    /// Looks at `event`, which the program caused at `stack`. What the event adds is in `world`
    /// already, what it ends still is.
    fn look(&mut self, event: &Event<'_>, stack: &Stack, world: &World, reports: &mut Vec<Report>);
}
