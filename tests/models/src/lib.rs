//! Models of the handshakes between threads and processes: source files of the provider, compiled
//! with loom's atomics. Loom runs a model with every interleaving of its threads, and lets each
//! load return every value that the memory model allows.
//!
//! `cargo test -p roxe-models` takes seconds. The mutants whose names contain `loom` remove fences,
//! and show that a model fails without them (`tests/mutants/run loom`).

#![cfg(test)]

/// Replaces [`provider/base/src/sync.rs`].
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

    /// Loom's mutex with the API of the provider's mutex: no poisoning, and a rank as a parameter.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<R, T>(loom::sync::Mutex<T>, std::marker::PhantomData<R>);

    impl<R, T> Mutex<R, T> {
        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }

    /// The ranks of the mutexes. They are not checked here, because loom detects deadlocks.
    pub(crate) mod rank {
        #[derive(Debug, Default)]
        pub(crate) struct FlowWaiters;
    }
}

mod background;
mod flow;
mod ring;
