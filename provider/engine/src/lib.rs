//! The data path of a device in this process, between links and queue pairs: it receives, sends and
//! runs timers.
//!
//! Threads of the program enter by [`engine::Engine::progress`], when they poll an empty completion
//! queue, and by the verbs of a queue pair. A background thread does this work while no thread of
//! the program does.
//! The crate above implements [`queue_pair::QueuePair`] and [`engine::Services`].
//! Begin with [`engine`], then read `progress` (a poll), `rx` and [`tx`]; [`poll_policy`] decides,
//! as pure functions, which thread works and how long an acknowledgement waits.
//!
//! Only `poller` and `thread` (epoll and threads) contain unsafe code.
#![deny(unsafe_code)]

mod ack_wait;
mod background;
pub mod engine;
pub mod event_wait;
pub mod flow_control;
mod follow;
mod forward_queue;
pub mod frames;
pub mod further;
pub mod gsi;
pub mod interceptor;
mod links;
mod multicast;
pub mod poll_policy;
#[allow(unsafe_code)]
mod poller;
pub mod presence;
mod progress;
pub mod queue_pair;
mod raw_frames;
pub mod reachability;
mod ring_service;
mod rings;
mod routes;
pub mod run;
mod rx;
mod rx_state;
pub mod scheduler;
pub mod shutdown;
mod start;
mod status;
mod table;
#[cfg(test)]
mod testing;
#[allow(unsafe_code)]
mod thread;
pub mod tx;

use roxe_base::sync;
