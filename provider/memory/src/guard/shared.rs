//! Copies of bytes that another process may change at any moment.

use super::arch;
use super::bytes::{Fault, SharedBytes, own_cells};

impl SharedBytes<'_> {
    /// Copies the first `out.len()` bytes and reads each of them once, because a second read could
    /// return another value. [`Fault`] if there are fewer.
    #[inline]
    pub fn copy_to(&self, out: &mut [u8]) -> Result<(), Fault> {
        if out.len() > self.len {
            return Err(Fault);
        }
        arch::read_shared(self.addr, own_cells(out))
    }

    /// Returns a copy of the bytes.
    #[cfg(any(test, feature = "testing"))]
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_to(&mut bytes).unwrap();
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;
    use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

    #[test]
    fn copy_beyond_shared_bytes_is_refused() {
        let bytes: Vec<_> = (0..100).map(AtomicU8::new).collect();
        let shared = SharedBytes::from(&bytes[..]);
        let part = shared.get(90..100).unwrap();
        assert_eq!((part.len(), part.to_vec()), (10, (90..100).collect()));
        assert_eq!(part.copy_to(&mut [0; 11]), Err(Fault));
        assert_eq!(part.get(10..10).unwrap().to_vec(), []);
        let backwards = Range { start: 5, end: 4 };
        assert!(shared.get(90..101).is_none() && part.get(0..11).is_none() && part.get(backwards).is_none());
    }

    /// Models a ring whose writer still changes a header after publishing it.
    #[test]
    fn copies_of_changing_bytes_never_go_back() {
        const LAST: u8 = 100;
        let bytes = [const { AtomicU8::new(0) }; 16];
        let shared = SharedBytes::from(&bytes[..]);
        // Every change waits for a copy, so that copies and changes overlap on a busy machine too.
        // The counter is relaxed, so that it does not order them.
        let copies = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..=LAST {
                    bytes.iter().for_each(|byte| byte.store(n, Ordering::Relaxed));
                    let before = copies.load(Ordering::Relaxed);
                    while n < LAST && copies.load(Ordering::Relaxed) == before {
                        std::thread::yield_now();
                    }
                }
            });
            let mut copy = shared.to_vec();
            while copy != [LAST; 16] {
                let before = std::mem::replace(&mut copy, shared.to_vec());
                assert!(copy.iter().zip(&before).all(|(now, before)| now >= before), "{before:?} became {copy:?}");
                copies.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}
