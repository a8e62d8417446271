//! The foundation of the provider, without packets, program memory or queue pairs.
//!
//! Start with [`lock`] and [`lock::rank`], which every thread of the provider uses, then [`error`]
//! and [`config`], which every verb uses.
//!
//! - [`error`]: the error type, a text with the failure and the remedy, and an errno
//! - [`config`]: the environment variables and their defaults; names of devices
//! - [`limits`]: the limits that `ibv_query_device` reports; [`profile`]: the limits of cards
//! - [`lock`]: locks with a rank in their type; [`lock::rank`]: the lock order
//! - [`sync`]: the atomics and the mutex of handshakes between threads, which the models replace by
//!   loom's
//! - [`clock`]: CLOCK_MONOTONIC, the clock of packets and completions; processor time of a thread
//! - [`timers`], [`queue`], [`ready`], [`table`], [`random`]: deadlines, a mostly empty queue,
//!   flags of pending work, values under unguessable keys, random numbers
//! - [`own_threads`]: roxe's threads, which must not keep a process alive
//! - [`uses`]: use counts, quotas of objects, object ids
//! - [`instruments`]: a flag that says whether anything observes or alters the card; [`weakest`]:
//!   the weakest legal card and its seed
//! - [`exit`]: tasks for the end of the process
//! - [`cancel`]: shields system calls of the provider from `pthread_cancel`
//! - [`privilege`]: the user and the privileges of the process
//! - [`private_dir`], [`private_file`]: folders and files that other users cannot replace
//! - [`standard_error`]: a copy of the standard error with which the process started
//!
//! # The life of a lock
//!
//! The type `Mutex<rank::Qp, _>` names a rank, a row of the table in [`lock::rank`]. `lock()` first
//! checks, in builds with debug assertions, that this thread holds no lock of the same or a later
//! row, then waits, then records the lock with its source line; dropping the guard removes the
//! record. A violation ends the process with both lines. Before a fork all locks are taken by rank
//! ([`lock::Lockable`]); then parent and child release them.
//!
//! # Unsafe code
//!
//! In `lock` (the traits of `lock_api`), `clock`, `exit`, `cancel`, `own_threads`, `privilege` and
//! `standard_error` (a few system or libc calls each).
#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod cancel;
#[allow(unsafe_code)]
pub mod clock;
pub mod config;
pub mod error;
#[allow(unsafe_code)]
pub mod exit;
pub mod instruments;
pub mod limits;
#[allow(unsafe_code)]
pub mod lock;
#[allow(unsafe_code)]
pub mod own_threads;
pub mod private_dir;
pub mod private_file;
#[allow(unsafe_code)]
pub mod privilege;
pub mod profile;
pub mod queue;
pub mod random;
pub mod ready;
#[allow(unsafe_code)]
pub mod standard_error;
pub mod sync;
pub mod table;
pub mod timers;
pub mod uses;
pub mod weakest;
