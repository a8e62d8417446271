//! What every part of the provider stands on. Nothing here knows packets on their way, memory of the program, or queue pairs.
//!
//! | module | what it is |
//! |---|---|
//! | [`error`] | the one error: what happened, to what, what to do, and the errno for a C caller |
//! | [`config`] | the environment variables, parsed once, and what an unset one means |
//! | [`limits`] | what `ibv_query_device` reports, and what there therefore can be |
//! | [`lock`] | locks with a rank in their type, and the table of all ranks of the provider: the lock order |
//! | [`sync`] | the atomics of handshakes between threads, which the models (`tests/models`) replace by loom's |
//! | [`clock`] | CLOCK_MONOTONIC, the only clock of the device |
//! | [`timers`], [`queue`], [`ready`], [`table`] | deadlines, a queue that is mostly empty, flags of waiting work, values under unguessable keys |
//! | [`uses`] | how many objects use another one, and how many of a kind there may be |
//! | [`exit`] | what is done when the process ends in good order |
//! | [`cancel`] | keeping `pthread_cancel` away from system calls of ours |
//! | [`privilege`] | with whose rights the process runs |
//!
//! # Unsafe code
//!
//! In `lock` (the traits of `lock_api`), `clock`, `exit`, `cancel` and `privilege` (a system or libc call or two each).
#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod cancel;
#[allow(unsafe_code)]
pub mod clock;
pub mod config;
pub mod error;
#[allow(unsafe_code)]
pub mod exit;
pub mod limits;
#[allow(unsafe_code)]
pub mod lock;
#[allow(unsafe_code)]
pub mod privilege;
pub mod queue;
pub mod ready;
pub mod sync;
pub mod table;
pub mod timers;
pub mod uses;
