//! An object that the checker knows of for as long as it lives. Tells events.

use crate::event::{Event, Made};
use crate::{is_on, tell};
use roxe_base::uses::ObjectId;
use std::sync::atomic::{AtomicBool, Ordering};

/// Part of an object of the program: tells that it came to be, and when it goes.
#[derive(Debug)]
pub struct Tracked {
    id: ObjectId,
    is_alive: AtomicBool,
}

impl Tracked {
    /// Tells that the object `id` was made.
    pub fn new(id: ObjectId, made: impl FnOnce() -> Made) -> Self {
        tell(|| Event::Created(id, made()));
        Self { id, is_alive: AtomicBool::new(is_on()) }
    }

    /// By what it is known.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Tells that the object is gone, once; dropping it does so too.
    pub fn end(&self) {
        if self.is_alive.swap(false, Ordering::Relaxed) {
            tell(|| Event::Destroyed(self.id));
        }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.end();
    }
}
