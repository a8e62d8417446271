//! The return addresses on the stack of the calling thread. **Unsafe room**: reads of the words
//! that hold them.
//!
//! To unwind a stack takes microseconds, and a program that posts and polls does so from few
//! places. So each thread remembers the stacks that it had last, with the word in which each return
//! address stood. A stack whose words all hold the same again, from the innermost call on, is the
//! same stack: where a call's frame lies and which function it returns to say where the next one
//! lies. A function whose frame has no fixed size (`alloca`) could deceive this; then a report
//! names another caller of it.

use std::cell::RefCell;
use std::ptr;
use std::sync::Arc;

/// Return addresses, innermost first, of which at most so many are kept.
const MOST: usize = 24;
/// Stacks that a thread remembers.
const REMEMBERED: usize = 16;

thread_local! {
    /// Those of this thread, the last one first.
    static KNOWN: RefCell<Vec<Known>> = const { RefCell::new(Vec::new()) };
}

/// A stack that a thread had.
struct Known {
    /// Where the frame of [`addresses`] was.
    mark: usize,
    /// Where each return address stood, and which it was.
    words: Vec<(usize, usize)>,
    addresses: Arc<[usize]>,
}

impl Known {
    /// Whether it is the stack of this thread now, whose frame is at `mark`.
    fn is_now(&self, mark: usize) -> bool {
        // SAFETY: the innermost word lies in the frame of the caller, at the same distance from
        // `mark` as in an earlier call of the same function. Each other one is only read when that
        // below it shows that the frame which it belongs to is there.
        let holds = |&(place, address): &(usize, usize)| unsafe { read_word(place) } == address;
        self.mark == mark && self.words.iter().all(holds)
    }
}

/// The return addresses of the calling thread, innermost first.
#[inline(never)]
pub(super) fn addresses() -> Arc<[usize]> {
    let here = 0u8;
    let mark = ptr::from_ref(&here).addr();
    // A thread that ends has forgotten them.
    let known = KNOWN.try_with(|known| {
        let mut known = known.try_borrow_mut().ok()?;
        let at = known.iter().position(|known| known.is_now(mark))?;
        known[..=at].rotate_right(1);
        Some(Arc::clone(&known[0].addresses))
    });
    known.ok().flatten().unwrap_or_else(|| unwind(mark))
}

/// Walks the stack outwards from the frame at `mark`.
#[cold]
fn unwind(mark: usize) -> Arc<[usize]> {
    let (mut addresses, mut words) = (Vec::with_capacity(MOST), Vec::with_capacity(MOST));
    backtrace::trace(|frame| {
        let (address, place) = (frame.ip().addr(), frame.sp().addr().wrapping_sub(size_of::<usize>()));
        // The calls inside of this one are over when somebody compares; where the outermost one
        // returns to is 0.
        if place > mark && address != 0 {
            addresses.push(address);
            words.push((place, address));
        }
        addresses.len() < MOST
    });
    let addresses: Arc<[usize]> = addresses.into();
    // Elsewhere the word below a frame holds something else.
    // SAFETY: these are words of frames of this thread, whose calls have not returned.
    let stands_there = |&(place, address): &(usize, usize)| unsafe { read_word(place) } == address;
    if cfg!(target_arch = "x86_64") && !words.is_empty() && words.iter().all(stands_there) {
        let known = Known { mark, words, addresses: Arc::clone(&addresses) };
        let _ = KNOWN.try_with(|all| {
            let Ok(mut all) = all.try_borrow_mut() else { return };
            all.truncate(REMEMBERED - 1);
            all.insert(0, known);
        });
    }
    addresses
}

/// The word at `place`.
///
/// # Safety
/// `place` is a word of the calling thread's stack.
unsafe fn read_word(place: usize) -> usize {
    // SAFETY: as the caller promises; nobody else writes there, and what the compiler knows of it
    // does not matter to a volatile read.
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
    fn the_same_stack_is_walked_once_and_another_one_is_told_apart() {
        let stacks: Vec<_> = (0..6).map(|at| if at % 2 == 0 { one() } else { other() }).collect();
        let is_same = |a: usize, b: usize| Arc::ptr_eq(&stacks[a], &stacks[b]);
        assert_ne!(stacks[0], stacks[1], "they called from different places");
        assert_eq!(cfg!(target_arch = "x86_64"), is_same(0, 2) && is_same(2, 4) && is_same(1, 3) && is_same(3, 5));
        let mut known = vec![];
        backtrace::trace(|frame| {
            known.push(frame.ip().addr());
            true
        });
        // Behind the call in this test, wherever that is in this build, both go the same way.
        let mut behind = stacks[0].iter().skip_while(|address| !known.contains(address)).peekable();
        assert!(behind.peek().is_some() && behind.all(|address| known.contains(address)));
    }

    #[test]
    fn a_stack_with_the_same_innermost_calls_and_another_outer_one_is_another_one() {
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
        assert_eq!(stacks[0][0], stacks[1][0], "both ask at the same place");
        assert_ne!(stacks[0], stacks[1]);
        assert_eq!((&stacks[0], &stacks[1]), (&stacks[2], &stacks[3]));
    }

    #[test]
    fn stacks_that_a_thread_has_forgotten_are_walked_again() {
        fn deep(more: usize) -> Arc<[usize]> {
            if more == 0 { one() } else { std::hint::black_box(deep(more - 1)) }
        }
        let first = deep(0);
        (1..=REMEMBERED).for_each(|more| _ = deep(more));
        assert_eq!(first[..1], deep(0)[..1]);
        KNOWN.with_borrow(|known| assert_eq!(known.len(), REMEMBERED));
    }
}
