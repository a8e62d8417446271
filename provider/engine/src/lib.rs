//! Who receives, sends and runs timers when: the data path of a device in this process, between
//! links and queue pairs.
//!
//! An [`engine::Engine`] belongs to one [`roxe_observe::adapter::Adapter`], which is a network
//! interface seen as a card. Threads of the program come in by [`engine::Engine::progress`] when
//! they poll an empty completion queue, and by the verbs of a queue pair; a background thread does
//! the same while nobody else does. Queue pairs are known by the trait [`queue_pair::QueuePair`],
//! connection managers by [`engine::Services`]; the crate above implements both.
//!
//! # From below
//!
//! - [`run`], [`queue_pair`]: packets as they are handed to a queue pair, and what the engine asks
//!   of one; `table`: queue pairs by number.
//! - [`poll_policy`]: who works when, and how long an acknowledgement waits, as pure functions;
//!   `presence`, `waiters`: what threads tell each other for it.
//! - [`scheduler`]: what is due and what is ready; `poller`, `thread`: how the background thread
//!   sleeps and is woken.
//! - `links`, `rings`, [`flow_control`], [`interceptor`]: sockets by address, rings by process,
//!   windows by receiver, captures and fault rules.
//! - `rx_state`, `groups`, [`frames`], `requests`, `forward_queue`: the receive
//!   side, as its lock guards it.
//! - [`engine`]: the owner of all these; above it what is done with them: `ways_out` (link or
//!   ring), [`tx`] (packets of a queue pair leave), `progress` (polls), `rx`, `multicast`,
//!   `raw_frames`, [`gsi`] (packets by kind), `ring_service`, `ack_wait`, `background`,
//!   `event_wait`, `start`, `follow`, [`shutdown`]; the engines of further threads: [`further`];
//!   whether packets can leave: [`next_hops`]; why nobody answers: [`reachability`];
//!   `status`: counters and queue pairs for `roxe top`.
//!
//! # Unsafe code
//!
//! In `poller` and `thread` (epoll and threads); everything else is safe.
#![deny(unsafe_code)]

mod ack_wait;
mod background;
pub mod engine;
mod event_wait;
pub mod flow_control;
mod follow;
mod forward_queue;
pub mod frames;
pub mod further;
mod groups;
pub mod gsi;
pub mod interceptor;
mod links;
mod multicast;
pub mod next_hops;
pub mod poll_policy;
#[allow(unsafe_code)]
mod poller;
mod presence;
mod progress;
pub mod queue_pair;
mod raw_frames;
pub mod reachability;
mod requests;
mod ring_service;
mod rings;
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
mod waiters;
mod ways_out;

use roxe_base::sync;
