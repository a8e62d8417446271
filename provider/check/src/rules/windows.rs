//! Memory windows: what each key of theirs opens or opened, and what ended that.
//!
//! Part of the rules on keys. Touches nothing.

use crate::event::{Event, Made};
use crate::id_map::IdMap;
use crate::stack::Stack;
use crate::world::{Work, World};
use roxe_base::uses::ObjectId;
use roxe_transport::wr::{Bind, SendOp};
use roxe_wire::RKey;
use std::collections::VecDeque;

/// Keys of one window that are remembered once they are dead.
const REMEMBERED: usize = 16;

/// A part of a region that was opened.
#[derive(Clone, Debug)]
pub(super) struct Binding {
    pub(super) bind: Bind,
    /// Where the request was posted.
    pub(super) posted: Stack,
    /// What closed it again, and where.
    pub(super) ended: Option<(&'static str, Stack)>,
}

/// All windows, by context and by the upper bits of their keys, which stay.
#[derive(Debug, Default)]
pub(super) struct Windows(IdMap<(ObjectId, u32), VecDeque<Binding>>);

impl Windows {
    /// Notes what opens and closes windows.
    pub(super) fn look(&mut self, event: &Event<'_>, stack: &Stack, world: &World) {
        match *event {
            Event::Bound { qp, bind } => {
                let Some(pair) = world.qp(qp) else { return };
                let posted = posted(world, |op| matches!(op, SendOp::BindWindow { rkey, .. } if *rkey == bind.rkey));
                let bindings = self.0.entry((pair.context, bind.rkey.0 >> 8)).or_default();
                close(bindings, if bind.length == 0 { "closed" } else { "bound anew" }, &posted);
                if bind.length > 0 {
                    if bindings.len() == REMEMBERED {
                        bindings.pop_front();
                    }
                    bindings.push_back(Binding { bind: *bind, posted, ended: None });
                }
            }
            Event::Invalidated { qp, rkey } => {
                let Some(pair) = world.qp(qp) else { return };
                let posted = posted(world, |op| invalidates(op, rkey));
                if let Some(bindings) = self.0.get_mut(&(pair.context, rkey.0 >> 8)) {
                    close(bindings, "invalidated", &posted);
                }
            }
            Event::Destroyed(id) => {
                let Some(Made::Mw { pd, key }) = world.object(id).map(|known| known.made) else { return };
                let Some(Made::Pd { context }) = world.object(pd).map(|known| known.made) else { return };
                if let Some(bindings) = self.0.get_mut(&(context, key >> 8)) {
                    close(bindings, "deallocated", stack);
                }
            }
            _ => {}
        }
    }

    /// What the key opens, or opened last.
    pub(super) fn find(&self, context: ObjectId, key: u32) -> Option<&Binding> {
        self.0.get(&(context, key >> 8))?.iter().rev().find(|binding| binding.bind.rkey.0 == key)
    }
}

/// The window is no longer what it was.
fn close(bindings: &mut VecDeque<Binding>, how: &'static str, stack: &Stack) {
    if let Some(last) = bindings.back_mut() {
        last.ended.get_or_insert_with(|| (how, stack.clone()));
    }
}

/// Where the request was posted that does what `is_it` says.
fn posted(world: &World, is_it: impl Fn(&SendOp) -> bool) -> Stack {
    let is_it = |work: &&Work| work.op.as_ref().is_some_and(&is_it);
    let work = world.all_outstanding().map(|(_, work)| work).find(is_it);
    work.map_or_else(Stack::unknown, |work| work.posted.clone())
}

fn invalidates(op: &SendOp, rkey: RKey) -> bool {
    matches!(op, SendOp::LocalInvalidate(key) | SendOp::SendInvalidate(key) if *key == rkey)
}
