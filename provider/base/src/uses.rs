//! Use counts, quotas of objects, and object ids that are never reused.
//!
//! Handles are `Arc`s, so any order of destruction is safe. The counts exist so that a destroy verb
//! in a wrong order returns EBUSY, as with a driver.

use crate::error::Error;
use crate::limits;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Identifies an object for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(u64);

impl ObjectId {
    /// Returns an id that no other object has or will have.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the number of the id, for messages.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// A count of the users of an object; clones share it.
#[derive(Clone, Debug, Default)]
pub struct UseCount(Arc<AtomicU32>);

impl UseCount {
    /// Adds a user until the returned value is dropped.
    pub fn hold(&self) -> Use {
        self.0.fetch_add(1, Ordering::Relaxed);
        Use(Arc::clone(&self.0))
    }

    /// Adds a user if there are fewer than `max`.
    fn hold_below(&self, max: u32) -> Option<Use> {
        let more = |count| (count < max).then_some(count + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok().then(|| Use(Arc::clone(&self.0)))
    }

    /// Returns the number of users.
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Checks that there are no users. The message of the error names the `object` and its `users`.
    ///
    /// # Errors
    /// EBUSY if there are users.
    pub fn check_unused(&self, object: &str, users: &str) -> Result<(), Error> {
        match self.count() {
            0 => Ok(()),
            n => Err(Error::busy(object, users, n)),
        }
    }
}

/// A user of an object, counted until this value is dropped.
#[derive(Debug)]
pub struct Use(Arc<AtomicU32>);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Increments a counter while it exists, for example a count of waiting threads.
#[derive(Debug)]
pub struct Counted<'a>(&'a AtomicU32);

impl<'a> Counted<'a> {
    /// Increments `count` until the returned value is dropped.
    pub fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Limits the number of objects of one kind on a device.
#[derive(Debug)]
pub struct Quota {
    count: UseCount,
    max: u32,
    /// Kind of objects, in the plural.
    kind: &'static str,
}

impl Quota {
    fn new(max: u32, kind: &'static str) -> Self {
        Self { count: UseCount::default(), max, kind }
    }

    /// Counts one more object until the returned value is dropped.
    ///
    /// # Errors
    /// ENOMEM if the device has `max` objects of the kind.
    pub fn take(&self) -> Result<Use, Error> {
        let Self { count, max, kind } = self;
        let full = || Error::new(libc::ENOMEM, format!("the device has {max} {kind}; destroy one first"));
        count.hold_below(*max).ok_or_else(full)
    }
}

/// The quotas of a device: the limits that `ibv_query_device` reports.
#[derive(Debug)]
pub struct Quotas {
    /// Address handles.
    pub ahs: Quota,
    /// Completion queues.
    pub cqs: Quota,
    /// Memory regions.
    pub mrs: Quota,
    /// Memory windows.
    pub mws: Quota,
    /// Protection domains.
    pub pds: Quota,
    /// Queue pairs.
    pub qps: Quota,
    /// Indirection tables.
    pub rwq_tables: Quota,
    /// Shared receive queues.
    pub srqs: Quota,
}

impl Default for Quotas {
    fn default() -> Self {
        let max = limits::in_force();
        Self {
            ahs: Quota::new(limits::MAX_AH, "address handles"),
            cqs: Quota::new(max.max_cq, "completion queues"),
            mrs: Quota::new(max.max_mr, "memory regions"),
            mws: Quota::new(limits::MAX_MW, "memory windows"),
            pds: Quota::new(max.max_pd, "protection domains"),
            qps: Quota::new(max.max_qp, "queue pairs"),
            rwq_tables: Quota::new(limits::MAX_RWQ_TABLES, "indirection tables"),
            srqs: Quota::new(max.max_srq, "shared receive queues"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_quota_refuses_until_an_object_is_dropped() {
        let quota = Quota::new(2, "things");
        let (a, b) = (quota.take().unwrap(), quota.take().unwrap());
        let full = quota.take().unwrap_err();
        assert_eq!(
            (full.errno(), full.to_string()),
            (libc::ENOMEM, "the device has 2 things; destroy one first".into())
        );
        drop(a);
        let c = quota.take().unwrap();
        assert!(quota.take().is_err());
        drop((b, c));
        assert!(quota.take().is_ok());
    }

    #[test]
    fn object_is_busy_until_its_last_user_is_dropped() {
        let count = UseCount::default();
        let (a, b) = (count.hold(), count.hold());
        assert_eq!(count.check_unused("x", "y").unwrap_err().errno(), libc::EBUSY);
        drop(a);
        assert!(count.check_unused("x", "y").is_err());
        drop(b);
        assert!(count.check_unused("x", "y").is_ok());
    }
}
