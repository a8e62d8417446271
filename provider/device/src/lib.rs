//! The device in this process: memory, completion queues, events, the engine and the links.
//!
//! ```text
//! devices() -> Device -> Context -+-> Pd -+-> Mr     memory and its keys            (pd, mr, guard, mapped)
//!                                 |       +-> Qp     transport's state machine      (qp, host)
//!                                 |       +-> Srq    shared receives, posted tags   (srq)
//!                                 |       +-> Wq     receives of a hash queue pair  (wq)
//!                                 |       +-> Flow   frames to raw packet queue pairs (steering)
//!                                 +-> Cq             completions                    (cq)
//!                                 +-> Dm             memory of the card             (dm)
//!                                 +-> CompChannel    descriptors to wait on         (event)
//! cm::Channel -> cm::Id          connections, listeners, datagram services           (cm)
//!              Engine, one per device and process: sockets, timers, one thread,     (engine, net)
//!                                                  its connection manager
//! ```
//!
//! # Who runs what
//!
//! The program's own threads drive the card. Posting a send builds and sends packets on the caller's thread. Polling an
//! empty completion queue receives what has arrived, for all queue pairs. One background thread per process does the
//! same while nobody polls: for programs that sleep on a channel, for passive targets of READ and WRITE, and for timers.
//! It also follows the network interface, from the first opening of the device on: port state, GID table, their events.
//! No object belongs to a thread; each has a lock of its own.
//!
//! # Locks
//!
//! The table of ranks in `lock` is the order in which they are taken; a thread that breaks it ends the process in builds with
//! debug assertions.
//!
//! Messages for the connection manager arrive under the lock of the receive side, which is inside of its own: they wait in
//! its inbox until that is free.
//!
//! No lock is held while a program's thread waits. A queue pair's lock is held while its own packets are handed to the
//! socket, which keeps them in order; completion channels are written to after it is dropped. The memory table is held
//! for reading while bytes are copied, mostly for all packets of a visit, so a deregistration that has returned means that
//! nobody touches the memory.
//!
//! # Unsafe code
//!
//! Lives in `guard` (touching application memory), `crc` (wide registers), `lock` and `fork` (locks across a fork), `net` and
//! `engine::poller` (sockets and waiting), `net::shm::memory` (memory shared with another process), `prefetch` (one
//! instruction), and in `engine::clock`, `mapped`, `event`, `port` and `exit` (a system call or two each); everything else is
//! safe.
#![deny(unsafe_code)]

mod ah;
pub mod cm;
mod comp_channel;
mod context;
mod cq;
mod device;
mod device_attr;
mod devices;
mod dm;
mod dm_budget;
#[allow(unsafe_code)]
mod event;
#[allow(unsafe_code)]
mod fork;
mod ib_cm;
mod mr;
mod mw;
mod open;
mod pd;
mod qp;
mod remote_targets;
mod runtime;
mod srq;
mod stats;
#[cfg(test)]
#[allow(unsafe_code)]
mod testing;
mod unpolled;
mod wq;
mod xrc_domain;
mod xrc_remote;
mod xrcd;

pub use ah::{Ah, AhAttr};
pub use comp_channel::CompChannel;
pub use context::Context;
pub use cq::{Cq, CqInit, Moderation};
pub use device::Device;
pub use device_attr::DeviceAttr;
pub use devices::{devices, preview};
pub use dm::Dm;
pub use event::{AsyncEvent, AsyncEventKind};
pub use mr::{Advice, DmaBuf, Mr, MrChange};
pub use mw::Mw;
pub use pd::Pd;
pub use qp::{Flow, FlowInit, Qp, QpInit, QpInitView, RwqTable, SendGuard};
pub use roxe_base::cancel::uncancelled;
pub use roxe_base::clock::now;
pub use roxe_base::error::Error;
pub use roxe_base::uses::Use;
pub use roxe_base::{config, limits, lock, ranks};
pub use roxe_engine::counter_files::counter_files;
pub use roxe_engine::flow_counters::{CounterKind, FlowCounters};
pub use roxe_engine::port::{GID_TABLE_LEN, GidEntry, PortAttr};
pub use roxe_memory::region::MwKind;
pub use roxe_net::runtime_dir::{is_overflow_user, runtime_dir};
pub use roxe_net::steer::is_probe;
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
