//! Runs work that mostly waits for several items at a time, in threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Calls `work` for each of `items` in their order, in `threads` threads at most. Returns the
/// results in the order of the items.
pub fn run<T: Sync, R: Send>(items: &[T], threads: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { break };
            let result = work(item);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
        }
    };
    thread::scope(|scope| (0..threads.min(items.len())).for_each(|_| drop(scope.spawn(worker))));
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn items_run_in_parallel_and_results_keep_their_order() {
        // No item passes the barrier before three have reached it.
        let (items, barrier): (Vec<usize>, _) = ((0..9).collect(), Barrier::new(3));
        let results = run(&items, 3, |item| {
            barrier.wait();
            item * 2
        });
        assert_eq!(results, [0, 2, 4, 6, 8, 10, 12, 14, 16]);
        assert!(run(&[] as &[u8], 3, |item| *item).is_empty());
    }
}
