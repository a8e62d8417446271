//! Who receives, sends and runs timers when: the data path of a device in this process, between links and queue pairs.
//!
//! An [`engine::Engine`] belongs to one [`adapter::Adapter`], which is a network interface seen as a card. Threads of the
//! program come in by [`engine::Engine::progress`] when they poll an empty completion queue and by the verbs of a queue pair;
//! one background thread does the same while nobody else does. Queue pairs are known by the trait [`queue_pair::QueuePair`],
//! connection managers and XRC domains by [`services::Services`]; the crate above implements both.
//!
//! | modules | what they are |
//! |---|---|
//! | [`adapter`], [`port`], [`counters`], [`counter_files`], [`stats_file`] | the interface as a port, and what was counted |
//! | [`engine`], [`start`], [`follow`], [`shutdown`] | the engine, its start, the interface it follows, its end |
//! | [`rx`], [`groups`], [`frames`], [`flow_counters`], [`gsi`], [`forward_queue`], [`xrc_remote`] | packets on their way in, by kind |
//! | [`tx`], [`send_room`] | packets on their way out, and who waits for room in a socket |
//! | [`rings`] | rings through shared memory to and from other processes |
//! | [`flow_control`] | windows towards receivers, credits, and who waits for room |
//! | [`interceptor`] | captures and fault rules |
//! | [`background`], [`thread`], [`poller`], [`presence`], [`waiters`], [`event_wait`], [`spinning`], [`ack_wait`] | who works when |
//! | [`poll_policy`] | what they decide by: whether to serve, spin, yield or sleep, and how long an acknowledgement waits |
//! | [`table`] | queue pairs by number |
//!
//! # Unsafe code
//!
//! In `poller` and `thread` (epoll and threads) and `port` (one ioctl); everything else is safe.
#![deny(unsafe_code)]

mod ack_wait;
pub mod adapter;
mod background;
pub mod counter_files;
pub mod counters;
pub mod engine;
mod event_wait;
pub mod fabric;
pub mod flow_control;
pub mod flow_counters;
mod follow;
mod forward_queue;
pub mod frames;
mod groups;
pub mod gsi;
pub mod interceptor;
mod links;
mod multicast;
mod notice;
pub mod poll_policy;
#[allow(unsafe_code)]
mod poller;
#[allow(unsafe_code)]
pub mod port;
mod presence;
mod progress;
pub mod queue_pair;
mod raw_frames;
mod ring_service;
mod rings;
pub mod run;
mod rx;
mod rx_state;
pub mod scheduler;
pub mod shutdown;
mod spinning;
mod start;
pub mod stats_file;
mod table;
#[cfg(test)]
mod testing;
#[allow(unsafe_code)]
mod thread;
pub mod tx;
mod unclaimed;
mod waiters;
pub mod xrc_messages;
mod xrc_remote;

use roxe_base::sync;
