//! Who uses whom: counters behind the EBUSY of the destroy verbs, and identities that are never reused.
//!
//! Handles are `Arc`s, so nothing dangles whatever a program destroys first; these counters exist to tell it that it
//! did so, as a driver would. Touches nothing.

use crate::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Names an object for as long as the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ObjectId(u64);

impl ObjectId {
    /// An identity that no other object has or will have.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// How many objects use this one.
#[derive(Debug, Default)]
pub(crate) struct UseCount(Arc<AtomicU32>);

impl UseCount {
    /// Counts one more user until the returned value is dropped.
    pub(crate) fn hold(&self) -> Use {
        self.0.fetch_add(1, Ordering::Relaxed);
        Use(Arc::clone(&self.0))
    }

    /// EBUSY while there are users.
    pub(crate) fn check_unused(&self, what: &str, users: &str) -> Result<(), Error> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            n => Err(Error::busy(what, users, n)),
        }
    }
}

/// One use of an object; ends when dropped.
#[derive(Debug)]
pub struct Use(Arc<AtomicU32>);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_busy_until_its_last_user_goes() {
        let count = UseCount::default();
        let (a, b) = (count.hold(), count.hold());
        assert_eq!(count.check_unused("x", "y").unwrap_err().errno(), libc::EBUSY);
        drop(a);
        assert!(count.check_unused("x", "y").is_err());
        drop(b);
        assert!(count.check_unused("x", "y").is_ok());
    }
}
