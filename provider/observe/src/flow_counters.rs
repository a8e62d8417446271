//! Counters for flow rules of raw packet queue pairs (`man ibv_create_counters`).

use roxe_base::error::Error;
use roxe_base::lock::{Mutex, rank};
use roxe_base::uses::{Use, UseCount};
use std::sync::atomic::{AtomicU64, Ordering};

const MAX_POINTS: usize = 64;

/// A countable property of the frames of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// Number of frames.
    Packets,
    /// Bytes of the frames, from the destination address on.
    Bytes,
}

/// A set of counters.
#[derive(Debug, Default)]
pub struct FlowCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
    points: Mutex<rank::FlowCounters, Vec<(CounterKind, u32)>>,
    uses: UseCount,
}

impl FlowCounters {
    /// Makes `kind` readable at `index`, where several kinds add up. Fails with EBUSY once a flow
    /// uses the counters, ENOMEM beyond 64 points.
    pub fn attach(&self, kind: CounterKind, index: u32) -> Result<(), Error> {
        let mut points = self.points.lock();
        self.uses.check_unused("set of counters", "flows")?;
        if points.len() >= MAX_POINTS {
            return Err(Error::new(libc::ENOMEM, "a set of counters has at most 64 points"));
        }
        points.push((kind, index));
        Ok(())
    }

    /// Writes the values to their indices. Fails with EINVAL if `values` is too short.
    pub fn read(&self, values: &mut [u64]) -> Result<(), Error> {
        let points = self.points.lock();
        if points.iter().any(|(_, index)| *index as usize >= values.len()) {
            return Err(Error::invalid("counters are attached at higher indices than the array has"));
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

    /// Adds a user until the returned value is dropped.
    pub fn hold(&self) -> Use {
        self.uses.hold()
    }

    /// Checks that no flow uses the counters. Fails with EBUSY if one does.
    pub fn destroy(&self) -> Result<(), Error> {
        self.uses.check_unused("set of counters", "flows")
    }

    /// Counts a frame of `len` bytes.
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
    fn used_counters_are_busy_and_points_are_limited() {
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
