//! The rules, one file per subject. Each is a state machine over events; it may read what the
//! program has, and writes reports.

mod atomics;
mod attributes;
mod buffers;
mod completions;
mod connections;
mod dead;
mod events;
mod key_faults;
mod keys;
mod life;
mod observer;
mod queues;
mod receives;
mod remote;
mod remote_place;
mod rights;
mod unread;
mod windows;

use crate::event::Event;
use crate::report::Report;
use crate::stack::Stack;
use crate::world::World;
use observer::Observer;

/// All rules.
#[derive(Debug)]
pub(crate) struct Rules(Vec<Box<dyn Observer>>);

impl Default for Rules {
    fn default() -> Self {
        Self(vec![
            Box::new(atomics::Atomics::default()),
            Box::new(attributes::Attributes::default()),
            Box::new(buffers::Buffers::default()),
            Box::new(completions::Completions::default()),
            Box::new(connections::Connections::default()),
            Box::new(dead::Dead::default()),
            Box::new(events::Events),
            Box::new(keys::Keys::default()),
            Box::new(life::Life::default()),
            Box::new(queues::Queues::default()),
            Box::new(receives::Receives::default()),
            Box::new(remote::Remote::default()),
            Box::new(rights::Rights::default()),
            Box::new(unread::UnreadEvents::default()),
        ])
    }
}

impl Rules {
    /// Shows an event to all of them.
    pub(crate) fn look(&mut self, event: &Event<'_>, stack: &Stack, world: &World, reports: &mut Vec<Report>) {
        self.0.iter_mut().for_each(|rule| rule.look(event, stack, world, reports));
    }
}
