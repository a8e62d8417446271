//! The return addresses on the stack of the calling thread. **Unsafe**: reads the words that hold
//! them.
//!
//! Unwinding takes microseconds, and programs post and poll from few places. So each thread caches
//! its last stacks with the location of each return address. If all locations still hold the same
//! values, from the innermost call on, the stack is the same: the frame of a call and its return
//! address determine the next frame. A frame of variable size (`alloca`) can break this rule; then
//! a report shows another caller.

use std::cell::RefCell;
use std::ptr;
use std::sync::Arc;

/// Maximum number of return addresses of a stack.
const MAX_ADDRESSES: usize = 24;
/// Maximum number of cached stacks of a thread.
const MAX_STACKS: usize = 16;

thread_local! {
    /// The cache of this thread, most recent first.
    static CACHE: RefCell<Vec<CachedStack>> = const { RefCell::new(Vec::new()) };
}

struct CachedStack {
    /// Address in the frame of [`addresses`].
    mark: usize,
    /// Location and value of each return address.
    words: Vec<(usize, usize)>,
    addresses: Arc<[usize]>,
}

impl CachedStack {
    /// Returns true if this is the current stack of the thread, with the frame of [`addresses`] at
    /// `mark`.
    fn is_current(&self, mark: usize) -> bool {
        // SAFETY: the words are read from the innermost outwards. The innermost lies in the frame
        // of the caller, at the same distance from `mark` as in an earlier call of `addresses`.
        // Each further word is read only if the word before it still holds its return address,
        // which shows that the frame with the further word has not returned.
        let holds = |&(place, address): &(usize, usize)| unsafe { read_word(place) } == address;
        self.mark == mark && self.words.iter().all(holds)
    }
}

/// Returns the return addresses of the calling thread, innermost first.
#[inline(never)]
pub(super) fn addresses() -> Arc<[usize]> {
    let here = 0u8;
    let mark = ptr::from_ref(&here).addr();
    // A thread that is ending has no cache any more.
    let known = CACHE.try_with(|known| {
        let mut known = known.try_borrow_mut().ok()?;
        let at = known.iter().position(|known| known.is_current(mark))?;
        known[..=at].rotate_right(1);
        Some(Arc::clone(&known[0].addresses))
    });
    known.ok().flatten().unwrap_or_else(|| unwind(mark))
}

/// Walks the stack outwards from the frame at `mark`.
#[cold]
fn unwind(mark: usize) -> Arc<[usize]> {
    let (mut addresses, mut words) = (Vec::with_capacity(MAX_ADDRESSES), Vec::with_capacity(MAX_ADDRESSES));
    backtrace::trace(|frame| {
        let (address, place) = (frame.ip().addr(), frame.sp().addr().wrapping_sub(size_of::<usize>()));
        // Frames below `mark` will have returned when the cache is compared; the outermost return
        // address is 0.
        if place > mark && address != 0 {
            addresses.push(address);
            words.push((place, address));
        }
        addresses.len() < MAX_ADDRESSES
    });
    let addresses: Arc<[usize]> = addresses.into();
    // On other architectures the word below a frame is not a return address.
    // SAFETY: the words lie in frames of this thread, whose calls have not returned.
    let holds = |&(place, address): &(usize, usize)| unsafe { read_word(place) } == address;
    if cfg!(target_arch = "x86_64") && !words.is_empty() && words.iter().all(holds) {
        let known = CachedStack { mark, words, addresses: Arc::clone(&addresses) };
        let _ = CACHE.try_with(|all| {
            let Ok(mut all) = all.try_borrow_mut() else { return };
            all.truncate(MAX_STACKS - 1);
            all.insert(0, known);
        });
    }
    addresses
}

/// Reads the word at `place`.
///
/// # Safety
/// `place` is a word of the calling thread's stack.
unsafe fn read_word(place: usize) -> usize {
    // SAFETY: the caller guarantees a stack word of this thread, so no other thread writes it. The
    // read is volatile, so the compiler assumes nothing about the value.
    unsafe { ptr::with_exposed_provenance::<usize>(place).read_volatile() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn one() -> Arc<[usize]> {
        std::hint::black_box(addresses())
    }

    #[inline(never)]
    fn other() -> Arc<[usize]> {
        let found = std::hint::black_box(addresses());
        std::hint::black_box(found)
    }

    #[test]
    fn same_stack_is_walked_once() {
        let stacks: Vec<_> = (0..6).map(|at| if at % 2 == 0 { one() } else { other() }).collect();
        let is_same = |a: usize, b: usize| Arc::ptr_eq(&stacks[a], &stacks[b]);
        assert_ne!(stacks[0], stacks[1], "they called from different places");
        assert_eq!(cfg!(target_arch = "x86_64"), is_same(0, 2) && is_same(2, 4) && is_same(1, 3) && is_same(3, 5));
        let mut known = vec![];
        backtrace::trace(|frame| {
            known.push(frame.ip().addr());
            true
        });
        // Outside the call in this test, both stacks have the same frames.
        let mut behind = stacks[0].iter().skip_while(|address| !known.contains(address)).peekable();
        assert!(behind.peek().is_some() && behind.all(|address| known.contains(address)));
    }

    #[test]
    fn stacks_with_different_outer_calls_differ() {
        #[inline(never)]
        fn left(number: u32) -> (Arc<[usize]>, u32) {
            (one(), std::hint::black_box(number) + 1)
        }
        #[inline(never)]
        fn right(number: u32) -> (Arc<[usize]>, u32) {
            (one(), std::hint::black_box(number) + 2)
        }
        let calls = std::hint::black_box(vec![left as fn(u32) -> _, right, left, right]);
        let stacks: Vec<_> = calls.iter().map(|call| call(7).0).collect();
        assert_eq!(stacks[0][0], stacks[1][0], "both call `addresses` at the same place");
        assert_ne!(stacks[0], stacks[1]);
        assert_eq!((&stacks[0], &stacks[1]), (&stacks[2], &stacks[3]));
    }

    #[test]
    fn evicted_stack_is_walked_again() {
        fn deep(more: usize) -> Arc<[usize]> {
            if more == 0 { one() } else { std::hint::black_box(deep(more - 1)) }
        }
        let first = deep(0);
        (1..=MAX_STACKS).for_each(|more| _ = deep(more));
        assert_eq!(first[..1], deep(0)[..1]);
        CACHE.with_borrow(|known| assert_eq!(known.len(), MAX_STACKS));
    }
}
