//! The rules, one file per subject. Each is a state machine over events; it may read what the
//! program has, and writes reports.

mod buffers;
mod key_faults;
mod keys;
mod queues;
mod windows;

use crate::event::Event;
use crate::report::Report;
use crate::stack::Stack;
use crate::world::World;

/// Something that looks at events for one subject.
trait Observer: std::fmt::Debug + Send {
    /// Looks at `event`, which the program caused at `stack`. What the event adds is in `world`
    /// already, what it ends still is.
    fn look(&mut self, event: &Event<'_>, stack: &Stack, world: &World, reports: &mut Vec<Report>);
}

/// All rules.
#[derive(Debug)]
pub(crate) struct Rules(Vec<Box<dyn Observer>>);

impl Default for Rules {
    fn default() -> Self {
        Self(vec![
            Box::new(buffers::Buffers::default()),
            Box::new(keys::Keys::default()),
            Box::new(queues::Queues::default()),
        ])
    }
}

impl Rules {
    /// Shows an event to all of them.
    pub(crate) fn look(&mut self, event: &Event<'_>, stack: &Stack, world: &World, reports: &mut Vec<Report>) {
        self.0.iter_mut().for_each(|rule| rule.look(event, stack, world, reports));
    }
}
