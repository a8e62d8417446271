//! Whether the kernel cuts a send into packets (`UDP_SEGMENT`), by destination.
//!
//! A system without it refuses the option when a socket is opened, which is final. A single send
//! may be refused as well: by a driver without checksum offload, by a path with IPsec, by an
//! interface that is too narrow. That concerns one destination, and for some time only, as routes
//! and interfaces change: packets go there one by one, and after some sends the kernel is asked
//! again, each time it refuses after twice as many. Touches nothing.

use crate::link::MAX_SEGMENTS;
use roxe_base::lock::{Mutex, rank};
use roxe_wire::Gid;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Sends of one packet each after the first refusal: as many as the run that was refused had at
/// most.
const FIRST_PAUSE: u32 = MAX_SEGMENTS as u32;
/// The longest pause, in sends: about a second of small packets.
const LONGEST_PAUSE: u32 = 1 << 16;
/// Destinations that are remembered; the one that was refused first is forgotten for the next.
const MAX_REFUSED: usize = 16;

/// States: no send is segmented, all are, or all but those to some destinations.
const OFF: u8 = 0;
const ON: u8 = 1;
const IN_PART: u8 = 2;

/// Which destinations the kernel refused segmented sends to.
#[derive(Debug)]
pub(super) struct Segments {
    /// One look at it is all that a send pays where nothing was refused.
    state: AtomicU8,
    refused: Mutex<rank::Segments, Vec<Refusal>>,
}

/// A destination to which it refused.
#[derive(Debug)]
struct Refusal {
    dst: Gid,
    /// Sends until it is asked again.
    left: u32,
    /// How many they were after the last refusal.
    pause: u32,
}

impl Segments {
    pub(super) fn new(is_on: bool) -> Self {
        Self { state: AtomicU8::new(if is_on { ON } else { OFF }), refused: Mutex::default() }
    }

    /// Whether the system cuts no send at all.
    pub(super) fn are_off(&self) -> bool {
        self.state.load(Relaxed) == OFF
    }

    /// Most packets of the next send to `dst`. Ask once for each.
    #[inline]
    pub(super) fn most(&self, dst: Gid) -> usize {
        match self.state.load(Relaxed) {
            ON => MAX_SEGMENTS,
            IN_PART if self.may_try(dst) => MAX_SEGMENTS,
            _ => 1,
        }
    }

    #[cold]
    fn may_try(&self, dst: Gid) -> bool {
        let mut refused = self.refused.lock();
        let Some(refusal) = refused.iter_mut().find(|refusal| refusal.dst == dst) else { return true };
        let may_try = refusal.left == 0;
        refusal.left = refusal.left.saturating_sub(1);
        may_try
    }

    /// A send of several packets to `dst` was refused.
    #[cold]
    pub(super) fn note_refused(&self, dst: Gid) {
        let mut refused = self.refused.lock();
        match refused.iter_mut().find(|refusal| refusal.dst == dst) {
            Some(refusal) => {
                refusal.pause = refusal.pause.saturating_mul(2).min(LONGEST_PAUSE);
                refusal.left = refusal.pause;
            }
            None => {
                if refused.len() >= MAX_REFUSED {
                    refused.remove(0);
                }
                refused.push(Refusal { dst, left: FIRST_PAUSE, pause: FIRST_PAUSE });
            }
        }
        // Not where the system has none at all.
        let _ = self.state.compare_exchange(ON, IN_PART, Relaxed, Relaxed);
    }

    /// A send of several packets to `dst` was taken.
    #[inline]
    pub(super) fn note_taken(&self, dst: Gid) {
        if self.state.load(Relaxed) == IN_PART {
            self.forget_refusals(dst);
        }
    }

    #[cold]
    fn forget_refusals(&self, dst: Gid) {
        let mut refused = self.refused.lock();
        refused.retain(|refusal| refusal.dst != dst);
        if refused.is_empty() {
            let _ = self.state.compare_exchange(IN_PART, ON, Relaxed, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn to(last: u8) -> Gid {
        Ipv4Addr::new(127, 77, 1, last).into()
    }

    /// Sends to `dst` until the kernel is asked again.
    fn pause(segments: &Segments, dst: Gid) -> u32 {
        (0..).find(|_| segments.most(dst) > 1).unwrap()
    }

    #[test]
    fn after_a_refusal_one_destination_gets_packets_one_by_one_for_a_while() {
        let segments = Segments::new(true);
        segments.note_refused(to(1));
        assert_eq!(segments.most(to(2)), MAX_SEGMENTS, "another destination");
        assert_eq!(pause(&segments, to(1)), FIRST_PAUSE);
        assert_eq!(segments.most(to(1)), MAX_SEGMENTS, "until it is refused again");
    }

    #[test]
    fn repeated_refusals_double_the_pause_and_one_success_ends_it() {
        let segments = Segments::new(true);
        segments.note_refused(to(1));
        let mut expected = FIRST_PAUSE;
        for _ in 0..20 {
            assert_eq!(pause(&segments, to(1)), expected);
            segments.note_refused(to(1));
            expected = (expected * 2).min(LONGEST_PAUSE);
        }
        assert_eq!(expected, LONGEST_PAUSE);
        segments.note_taken(to(1));
        assert_eq!((segments.most(to(1)), segments.state.load(Relaxed)), (MAX_SEGMENTS, ON));
        segments.note_refused(to(1));
        assert_eq!(pause(&segments, to(1)), FIRST_PAUSE);
    }

    #[test]
    fn destinations_that_refuse_are_bounded() {
        let segments = Segments::new(true);
        (0..100).for_each(|last| segments.note_refused(to(last)));
        assert_eq!(segments.refused.lock().len(), MAX_REFUSED);
        assert_eq!((segments.most(to(99)), segments.most(to(0))), (1, MAX_SEGMENTS));
    }

    #[test]
    fn a_system_without_segmentation_is_never_asked() {
        let segments = Segments::new(false);
        segments.note_refused(to(1));
        segments.note_taken(to(1));
        assert_eq!((segments.most(to(1)), segments.most(to(2))), (1, 1));
    }
}
