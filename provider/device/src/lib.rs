//! The objects of an RDMA device in this process: contexts, memory, queues, completions, events and
//! connections.
//!
//! ```text
//! devices() -> Device -> Context -+-> Pd -+-> Mr, Mw     memory regions and windows
//!                                 |       +-> Ah         destinations of datagrams
//!                                 |       +-> Qp         queue pairs
//!                                 |       +-> Srq        shared receive queues, tag matching
//!                                 |       +-> Wq         receive work queues
//!                                 +-> Cq, CompChannel    completions, and descriptors to wait on
//!                                 +-> Dm                 device memory
//!                                 +-> Xrcd               XRC domains
//! cm::Channel -> cm::Id                                  connections, listeners, datagram services
//! ```
//!
//! The method that creates an object is in the object's file. To follow a SEND read `qp::send`,
//! `qp::core` and `qp::host`, then [`roxe_engine::tx`]; a packet goes from [`roxe_engine::engine`]
//! to `qp::queue_pair` and `qp::host`, its completion to `cq`.
//!
//! # Threads
//!
//! The program's threads drive the card. Posting a send builds and sends packets. Polling an empty
//! completion queue receives packets for all queue pairs of the queue's engine; a queue belongs to
//! the engine of the thread that created it. A background thread per engine receives while no
//! thread polls: for programs that sleep on a channel, for targets of READ and WRITE, and for
//! timers. It also follows the network interface (port state, GID table). No object is bound to a
//! thread.
//!
//! # Locks
//!
//! [`roxe_base::lock`] defines the lock order; debug builds check it. No lock is held while a
//! program's thread waits. A queue pair's lock is held while its packets are handed to the socket,
//! which keeps them in order; completion channels are notified after it is dropped. The memory
//! table is locked for reading while bytes are copied, so that no access follows a deregistration.
#![deny(unsafe_code)]

mod ah;
pub mod cm;
mod comp_channel;
mod context;
mod cq;
mod device;
mod devices;
mod dm;
#[allow(unsafe_code)]
mod event;
#[allow(unsafe_code)]
mod fork;
mod ib_cm;
mod inventory;
mod mr;
mod mw;
mod pd;
mod qp;
mod rule_events;
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
pub use roxe_net::named::namespace as network_namespace;
pub use roxe_net::runtime_dir::{LISTED_FILE, STARTED_FILE, is_overflow_user, runtime_dir, watched_dir};
pub use roxe_net::status::{Answer, ObjectKind, Query, SHORTENED, ask, ask_here, ask_in, ask_one};
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
