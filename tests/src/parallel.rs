//! Work that mostly waits, several pieces at a time. Touches threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Does `work` for each of `items`, for as many as `lanes` at once, beginning in their order; the
/// results are in their order.
pub fn run<T: Sync, R: Send>(items: &[T], lanes: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let lane = || {
        while let Some((place, item)) = at(items, next.fetch_add(1, Ordering::Relaxed)) {
            let result = work(item);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((place, result));
        }
    };
    thread::scope(|scope| (0..lanes.min(items.len())).for_each(|_| drop(scope.spawn(lane))));
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

fn at<T>(items: &[T], place: usize) -> Option<(usize, &T)> {
    items.get(place).map(|item| (place, item))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn lanes_run_beside_each_other_and_results_keep_their_order() {
        // No item passes the barrier before three have reached it.
        let (items, meeting): (Vec<usize>, _) = ((0..9).collect(), Barrier::new(3));
        let results = run(&items, 3, |item| {
            meeting.wait();
            item * 2
        });
        assert_eq!(results, [0, 2, 4, 6, 8, 10, 12, 14, 16]);
        assert!(run(&[] as &[u8], 3, |item| *item).is_empty());
    }
}
