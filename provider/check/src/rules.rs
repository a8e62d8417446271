//! The rules, one module per subject. Each rule is a state machine over events. It may read the
//! [`Program`], the checker's model of the program's objects, and adds reports.

mod attributes;
mod completions;
mod connections;
mod events;
mod keys;
mod life;
mod memory;
mod queues;

use crate::event::Event;
use crate::program::{Observer, Program};
use crate::report::Report;
use crate::stack::Stack;

pub use life::note_fork_support;

#[derive(Debug)]
pub(crate) struct Rules(Vec<Box<dyn Observer>>);

impl Default for Rules {
    fn default() -> Self {
        Self(vec![
            Box::new(memory::Atomics::default()),
            Box::new(attributes::AttributeRules::default()),
            Box::new(memory::Buffers::default()),
            Box::new(completions::Completions::default()),
            Box::new(connections::Connections::default()),
            Box::new(completions::Dead::default()),
            Box::new(events::Events),
            Box::new(keys::Keys::default()),
            Box::new(life::Life::default()),
            Box::new(queues::Queues::default()),
            Box::new(queues::Receives::default()),
            Box::new(memory::Remote::default()),
            Box::new(keys::Rights::default()),
            Box::new(events::UnreadEvents::default()),
        ])
    }
}

impl Rules {
    pub(crate) fn observe(&mut self, event: &Event<'_>, stack: &Stack, program: &Program, reports: &mut Vec<Report>) {
        self.0.iter_mut().for_each(|rule| rule.observe(event, stack, program, reports));
    }
}
