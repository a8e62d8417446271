//! Random numbers of the kernel, fetched in blocks, because each fetch is a system call and a
//! connection needs a dozen numbers. Each thread has its own block. [`abandon`] empties it in the
//! child of a fork, which must not draw the same numbers as its parent.

use std::cell::Cell;
use std::io;

/// Numbers per fetch: signals do not interrupt `getrandom` calls of up to 256 bytes.
const BLOCK: usize = 32;

thread_local! {
    /// The unused numbers and their count.
    static BLOCK_OF_THREAD: Cell<([u64; BLOCK], usize)> = const { Cell::new(([0; BLOCK], 0)) };
}

/// Returns an unpredictable number.
///
/// # Errors
/// The error of the system call, or EIO.
pub fn number() -> io::Result<u64> {
    let (mut block, mut left) = BLOCK_OF_THREAD.get();
    if left == 0 {
        let mut bytes = [0; 8 * BLOCK];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        let (numbers, _) = bytes.as_chunks::<8>();
        block.iter_mut().zip(numbers).for_each(|(number, bytes)| *number = u64::from_ne_bytes(*bytes));
        left = BLOCK;
    }
    left -= 1;
    let number = block.get_mut(left).map(std::mem::take).unwrap_or_default();
    BLOCK_OF_THREAD.set((block, left));
    Ok(number)
}

/// Discards the fetched numbers of this thread, in the child of a fork.
pub fn abandon() {
    BLOCK_OF_THREAD.set(([0; BLOCK], 0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn random_numbers_are_distinct_across_threads() {
        let draw = || (0..10 * BLOCK).map(|_| number().unwrap()).collect::<Vec<_>>();
        let other = std::thread::spawn(draw).join().unwrap();
        let all: HashSet<u64> = draw().into_iter().chain(other).collect();
        assert_eq!(all.len(), 20 * BLOCK);
    }

    #[test]
    fn fork_child_discards_fetched_numbers() {
        number().unwrap();
        let (block, left) = BLOCK_OF_THREAD.get();
        assert!(left > 0);
        abandon();
        let drawn: Vec<_> = (0..left).map(|_| number().unwrap()).collect();
        assert!(block[..left].iter().all(|number| !drawn.contains(number)));
    }
}
