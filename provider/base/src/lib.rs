//! What every part of the provider stands on. Nothing here knows packets, memory of the program, or
//! queue pairs.
//!
//! Start with [`lock`] and [`lock::rank`], which every thread of the provider goes through, then
//! [`error`] and [`config`], which every verb does.
//!
//! - [`error`]: the one error: what happened, to what, what to do, and the errno for a C caller
//! - [`config`]: the environment variables, parsed once, and what an unset one means; what devices
//!   are called
//! - [`limits`]: what `ibv_query_device` reports, and what there therefore can be; [`profile`]: the
//!   limits of cards
//! - [`lock`]: locks with a rank in their type; [`lock::rank`] has the table of all ranks: the lock
//!   order
//! - [`sync`]: the atomics of handshakes between threads, which the models (`tests/models`) replace
//!   by loom's
//! - [`clock`]: CLOCK_MONOTONIC, the only clock of the device
//! - [`timers`], [`queue`], [`ready`], [`table`], [`random`]: deadlines, a queue that is mostly
//!   empty, flags of waiting work, values under unguessable keys, numbers nobody can guess
//! - [`uses`]: use counts, quotas of objects, and identities
//! - [`instruments`], [`weakest`]: whether anything watches or changes what the card does; the
//!   weakest legal card and the choices of its seed
//! - [`exit`]: tasks for the end of the process
//! - [`cancel`]: keeping `pthread_cancel` away from system calls of the provider
//! - [`privilege`]: the user and the privileges of the process
//! - [`private_dir`]: folders that other users cannot exchange
//! - [`private_file`]: files that the user names for captures and traces
//! - [`standard_error`]: the standard error that the process began with
//!
//! # The life of a lock
//!
//! A `Mutex<rank::Qp, _>` is declared with a row of the table. `lock()` first checks, in builds
//! with debug assertions, that this thread holds no lock of the same or a later row, then waits,
//! then notes the lock with the line that took it; dropping the guard removes the note. A conflict
//! ends the process with both lines. Other builds neither check nor note. Before a fork all locks
//! are taken by their ranks ([`lock::Lockable`]) and released on both sides.
//!
//! # Unsafe code
//!
//! In `lock` (the traits of `lock_api`), `clock`, `exit`, `cancel`, `privilege` and
//! `standard_error` (a system or libc call or two each).
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
