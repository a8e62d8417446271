//! Counters that flows of raw packet queue pairs may have (`man ibv_create_counters`).
//!
//! Touches nothing.

use roxe_base::error::Error;
use roxe_base::lock::{Mutex, rank};
use roxe_base::uses::{Use, UseCount};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counter points of one set of counters.
const MAX_POINTS: usize = 64;

/// What can be counted of the frames of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// Frames.
    Packets,
    /// Their bytes, from the first of the destination address on.
    Bytes,
}

/// A set of counters (`man ibv_create_counters`).
#[derive(Debug, Default)]
pub struct FlowCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
    /// What is read where.
    points: Mutex<rank::FlowCounters, Vec<(CounterKind, u32)>>,
    uses: UseCount,
}

impl FlowCounters {
    /// Lets `kind` be read at `index`; what is attached to the same index is added up. EBUSY once a
    /// flow uses the counters, ENOMEM beyond 64 points.
    pub fn attach(&self, kind: CounterKind, index: u32) -> Result<(), Error> {
        let mut points = self.points.lock();
        self.uses.check_unused("set of counters", "flows")?;
        if points.len() >= MAX_POINTS {
            return Err(Error::new(libc::ENOMEM, "a set of counters takes 64 points"));
        }
        points.push((kind, index));
        Ok(())
    }

    /// Writes what was counted since the creation to the indices that were attached. EINVAL if
    /// `values` is too short.
    pub fn read(&self, values: &mut [u64]) -> Result<(), Error> {
        let points = self.points.lock();
        if points.iter().any(|(_, index)| *index as usize >= values.len()) {
            return Err(Error::invalid("there are counters attached at higher indices"));
        }
        values.fill(0);
        for (kind, index) in points.iter() {
            let counter = match kind {
                CounterKind::Packets => &self.packets,
                CounterKind::Bytes => &self.bytes,
            };
            values[*index as usize] += counter.load(Ordering::Relaxed);
        }
        Ok(())
    }

    /// One more flow uses them, until the returned value is dropped.
    pub fn hold(&self) -> Use {
        self.uses.hold()
    }

    /// Whether they may be destroyed: EBUSY while flows use them.
    pub fn destroy(&self) -> Result<(), Error> {
        self.uses.check_unused("set of counters", "flows")
    }

    /// One frame of `len` bytes.
    pub fn count(&self, len: usize) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(len as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_add_up_at_their_indices() {
        let counters = FlowCounters::default();
        counters.attach(CounterKind::Packets, 1).unwrap();
        counters.attach(CounterKind::Bytes, 0).unwrap();
        counters.attach(CounterKind::Packets, 0).unwrap();
        [60, 100].into_iter().for_each(|len| counters.count(len));
        let mut values = [9; 3];
        counters.read(&mut values).unwrap();
        assert_eq!(values, [162, 2, 0]);
        assert_eq!(counters.read(&mut values[..1]).unwrap_err().errno(), libc::EINVAL);
    }

    #[test]
    fn counters_in_use_are_busy_and_their_points_are_limited() {
        let counters = FlowCounters::default();
        let flow = counters.uses.hold();
        assert_eq!(counters.attach(CounterKind::Bytes, 0).unwrap_err().errno(), libc::EBUSY);
        assert_eq!(counters.destroy().unwrap_err().errno(), libc::EBUSY);
        drop(flow);
        (0..MAX_POINTS).for_each(|_| counters.attach(CounterKind::Bytes, 0).unwrap());
        assert_eq!(counters.attach(CounterKind::Bytes, 0).unwrap_err().errno(), libc::ENOMEM);
        assert!(counters.destroy().is_ok());
    }
}
