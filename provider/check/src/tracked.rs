//! An object that the checker knows of for as long as it lives. Tells events.

use crate::event::{Event, Made};
use crate::{is_on, tell};
use roxe_base::uses::ObjectId;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    /// How deep this thread is inside of [`for_library`].
    static FOR_LIBRARY: Cell<u32> = const { Cell::new(0) };
}

/// Makes objects that a library keeps for itself: a program that does not destroy them has not
/// forgotten them.
pub fn for_library<T>(make: impl FnOnce() -> T) -> T {
    /// Ends also when `make` unwinds.
    struct Inside;
    impl Drop for Inside {
        fn drop(&mut self) {
            FOR_LIBRARY.set(FOR_LIBRARY.get() - 1);
        }
    }
    FOR_LIBRARY.set(FOR_LIBRARY.get() + 1);
    let _inside = Inside;
    make()
}

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
        if is_on() && FOR_LIBRARY.get() > 0 {
            tell(|| Event::MadeByLibrary(id));
        }
        Self { id, is_alive: AtomicBool::new(is_on()) }
    }

    /// By what it is known.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Whether the checker knows it, and not yet that it is gone.
    pub fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Relaxed)
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
