//! What a program holds of a device: contexts, memory, queues, completions, events and connections.
//!
//! ```text
//! devices() -> Device -> Context -+-> Pd -+-> Mr, Mw     memory and windows, and their keys
//!                                 |       +-> Ah         where datagrams go
//!                                 |       +-> Qp         the transport's state machine, its queues
//!                                 |       +-> Srq        shared receives, posted tags
//!                                 |       +-> Wq         receives of a hash queue pair
//!                                 +-> Cq, CompChannel    completions, and descriptors to wait on
//!                                 +-> Dm                 memory of the card
//!                                 +-> Xrcd               an XRC domain: shared queues and targets
//! cm::Channel -> cm::Id                                  connections, listeners, datagram services
//! ```
//!
//! # The files, from below
//!
//! No file imports one that imports it. An object knows the context or the domain that it belongs
//! to; the method of these that creates an object is in the file of the object.
//!
//! - `event`, `sleepers`: queues of events with a descriptor; which of them nobody reads, and
//!   threads that sleep in front of them
//! - `weakest`: the weakest legal card: what queues do for it
//! - `device`, `context`: a card and one opening of it: memory table, asynchronous
//!   events, engine; `engine_set`: which engines complete something in one place
//! - `pd`, `ah`, `mr`, `mw`, `dm`: memory and addresses
//! - `comp_channel`, `cq`, `srq`: where completions go, and where receives come from
//! - `qp`, `wq`: queue pairs: the verbs, a visit under the lock, what the engine asks of them
//! - `xrcd`: XRC domains
//! - `ib_cm`: the connection manager of a device, which engines hand messages and changes of the
//!   interface up to, and who has which port
//! - `runtime`: the devices and engines of this process
//! - `fork`, `devices`: a fork; the list of devices, opening one, and the end of the process
//! - [`cm`]: the objects behind librdmacm, above everything else
//!
//! A SEND goes through `qp::send` (posting, and whether it leaves now), `qp::core` (a visit:
//! transmit, timer, events) and `qp::host` (payload and room) to [`roxe_engine::tx`]; a packet
//! comes from the receive side of [`roxe_engine::engine`] to `qp::queue_pair`, and its completion
//! goes by `qp::host` to `cq`. Tag matching is in `srq`, raw packets with flows and RSS in
//! `qp::steering` and `wq`, the weakest legal card in `weakest`, what runs only for the checker or
//! that card in `qp::cold`: who reads the path of a packet can skip these.
//!
//! # Who runs what
//!
//! The program's own threads drive the card. Posting a send builds and sends packets on the
//! caller's thread. Polling an empty completion queue receives what has arrived, for all queue
//! pairs of its engine: that of the thread that made the queue. A background thread for each engine
//! does the same while nobody polls: for programs that sleep on a channel, for passive targets of
//! READ and WRITE, and for timers. It also follows the network interface, from the first opening of
//! the device on: port state, GID table, their events. No object belongs to a thread; each has a
//! lock of its own.
//!
//! # Locks
//!
//! The table of ranks in [`roxe_base::lock`] is the order in which they are taken; a thread that
//! breaks it ends the process in builds with debug assertions.
//!
//! Messages for the connection manager arrive under the lock of the receive side, which is inside
//! of its own: they wait in its inbox until that is free.
//!
//! No lock is held while a program's thread waits. A queue pair's lock is held while its own
//! packets are handed to the socket, which keeps them in order; completion channels are written to
//! after it is dropped. The memory table is held for reading while bytes are copied, mostly for all
//! packets of a visit, so a deregistration that has returned means that nobody touches the memory.
//!
//! # Unsafe code
//!
//! In `event` (system calls on an eventfd) and `fork` (`pthread_atfork`, and locks across a fork).
//! `mr/registration` has functions whose callers promise what the memory is; everything else is
//! safe.
#![deny(unsafe_code)]

mod ah;
pub mod cm;
mod comp_channel;
mod context;
mod cq;
mod device;
mod devices;
mod dm;
mod engine_set;
#[allow(unsafe_code)]
mod event;
#[allow(unsafe_code)]
mod fork;
mod ib_cm;
mod mr;
mod mw;
mod pd;
mod qp;
mod runtime;
mod sleepers;
mod srq;
#[cfg(test)]
#[allow(unsafe_code)]
mod testing;
pub mod weakest;
mod wq;
mod xrcd;

pub use ah::{Ah, AhAttr};
pub use comp_channel::CompChannel;
pub use context::Context;
pub use cq::{Cq, CqInit, Moderation};
pub use device::{Device, DeviceAttr};
pub use devices::{devices, preview};
pub use dm::Dm;
pub use event::{AsyncEvent, AsyncEventKind};
pub use mr::{Advice, DmaBuf, Mr, MrChange};
pub use mw::Mw;
pub use pd::Pd;
pub use qp::{Flow, FlowInit, Qp, QpInit, RwqTable, SendGuard};
pub use roxe_base::cancel::uncancelled;
pub use roxe_base::clock::now;
pub use roxe_base::error::Error;
pub use roxe_base::privilege::has_capabilities;
pub use roxe_base::uses::{ObjectId, Use};
pub use roxe_base::{config, limits, lock, own_threads, profile, ranks, standard_error};
pub use roxe_memory::region::MwKind;
pub use roxe_net::runtime_dir::{is_overflow_user, runtime_dir};
pub use roxe_net::status::{Answer, ask};
pub use roxe_net::steer::is_probe;
pub use roxe_observe::counter_files::counter_files;
pub use roxe_observe::counters::Counters;
pub use roxe_observe::flow_counters::{CounterKind, FlowCounters};
pub use roxe_observe::port::{GID_TABLE_LEN, GidEntry, PortAttr};
pub use roxe_observe::stats_file::legend_of;
pub use roxe_transport::qp::{AttrMask, MigState, ModifyError, PostError, QpAttr, QpCaps, QpState, Service};
pub use roxe_transport::rss::{HashFields, RxHash, TOEPLITZ_KEY_LEN};
pub use roxe_transport::steering::RuleKind;
pub use roxe_transport::tags::{TagHandle, TagRecv};
pub use roxe_transport::wr::{
    Access, Av, Cqe, RecvRequest, SendData, SendFlags, SendOp, SendRequest, Sge, TmFlags, TmInfo, UdDest, VendorErr,
    WcExtra, WcOpcode, WcStatus,
};
pub use roxe_wire as wire;
pub use srq::{Srq, SrqAttr, SrqInit, TagInit, TagOp, TagRequest};
pub use wq::{Wq, WqInit, WqState};
pub use xrcd::{Xrcd, XrcdInit};
