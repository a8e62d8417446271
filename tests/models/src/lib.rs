//! Models of the handshakes between threads and processes: the files of the provider themselves,
//! over loom's atomics, run in every order in which their threads could run, with every store that
//! each of their loads could see.
//!
//! `cargo test -p roxe-models` takes seconds. What a missing fence leads to is proved by the
//! mutants whose names begin with `loom` (`tests/mutants/run loom`).

#![cfg(test)]

/// Replaces [`provider/base/src/sync.rs`].
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

    /// With the face of `parking_lot`.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<R, T>(loom::sync::Mutex<T>, std::marker::PhantomData<R>);

    impl<R, T> Mutex<R, T> {
        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }

    /// The ranks of the mutexes, which loom checks in ways of its own.
    pub(crate) mod rank {
        #[derive(Debug, Default)]
        pub(crate) struct FlowWaiters;
    }
}

mod background;
mod flow;
mod ring;
