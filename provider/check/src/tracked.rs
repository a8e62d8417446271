//! Reports the creation and the destruction of an object to the checker.

use crate::event::{Event, Object};
use crate::{emit, is_on};
use roxe_base::uses::ObjectId;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    /// Nesting depth of [`for_library`] on this thread.
    static FOR_LIBRARY: Cell<u32> = const { Cell::new(0) };
}

/// Runs `make`; objects created inside belong to a library, so the `leak` rule does not report
/// them.
pub fn for_library<T>(make: impl FnOnce() -> T) -> T {
    /// A guard, because `make` may unwind.
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

/// Part of an object of the program: reports its creation, and its destruction when dropped.
#[derive(Debug)]
pub struct Tracked {
    id: ObjectId,
    is_alive: AtomicBool,
}

impl Tracked {
    /// Reports that the object `id` was created.
    pub fn new(id: ObjectId, describe: impl FnOnce() -> Object) -> Self {
        emit(|| Event::Created(id, describe()));
        if is_on() && FOR_LIBRARY.get() > 0 {
            emit(|| Event::OwnedByLibrary(id));
        }
        Self { id, is_alive: AtomicBool::new(is_on()) }
    }

    /// Returns the id of the object.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Returns true if the checker knows the object and has not seen its end.
    pub fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Relaxed)
    }

    /// Reports the destruction of the object, at most once; so does dropping this value.
    pub fn end(&self) {
        if self.is_alive.swap(false, Ordering::Relaxed) {
            emit(|| Event::Destroyed(self.id));
        }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.end();
    }
}
