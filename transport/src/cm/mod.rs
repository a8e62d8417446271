//! Connection management: the state machines of `rdma_connect`, which exchange messages of the
//! InfiniBand CM over queue pair 1 (IBA §12).
//!
//! [`Cm`] (in `manager.rs`, the file to read first) holds all connections and lookups of one
//! device. Like a queue pair it is driven from outside: verbs of the program such as
//! [`Cm::connect`]; the inputs [`Cm::handle_message`] and [`Cm::handle_timeout`]; the outputs
//! [`Cm::poll_transmit`], [`Cm::poll_event`] and [`Cm::poll_timeout`], to be fetched after any verb
//! or input. Time and unpredictable numbers are passed to each call as [`Cx`].
//!
//! # A connection
//!
//! ```text
//!      active side                                           passive side
//!
//!        connect                                                listen
//!           │ REQ ───────────────────────────────────────────►    │ ConnectRequest
//!           ▼                                                     ▼
//!        ReqSent ◄─────── MRA(REQ) ───────────────────────── ReqRcvd ── delay ─► MraReqSent
//!           │  └─► MraReqRcvd ─┐                                  │ accept ◄──────────┘
//!           ▼ ◄────────────────┘ ◄─────────────────────────── REP ▼
//!        RepRcvd ──────── MRA(REP) ─────────────────────────► RepSent ──────────► MraRepRcvd
//!           │  └─ delay ─► MraRepSent                             │                   │
//!           │ confirm ◄──────┘                                    │ RTU, or establish │
//!           ▼ RTU ───────────────────────────────────────────►    ▼ ◄─────────────────┘
//!      Established                                           Established
//!           │ disconnect                                          │
//!           ▼ DREQ ──────────────────────────────────────────►    ▼ Disconnected(Requested)
//!       DreqSent                                              DreqRcvd
//!           │ Disconnected                                        │ disconnect
//!           ▼ ◄────────────────────────────────────────────  DREP ▼
//!       TimeWait ── TimeWaitExit ─► gone                      TimeWait ── TimeWaitExit ─► gone
//! ```
//!
//! `reject` in ReqRcvd, RepRcvd and their MRA states sends a REJ and removes the connection; a
//! received REJ removes it too, except that a REQ or lookup without a listener may be retried for a
//! while. REQ, REP and DREQ are retransmitted until answered; after the last retry a REQ or REP
//! ends in `Unreachable` and a REJ for timeout, a DREQ in TimeWait. If both ends send a DREQ, each
//! answers the other's. A destroyed connection continues without events until the peer is informed.
//!
//! # Hostile peers
//!
//! A message acts on a connection only if its source is the peer's address and both its ids are
//! correct (D8 of the design). Any other message causes at most one answer to its sender: a REJ
//! for REP and RTU, a DREP for DREQ. The backlog of each listener and [`Settings::max_connections`]
//! bound the memory that peers can occupy, and no requested wait is longer than a minute.

mod alternate;
mod connection;
mod listen;
mod manager;
mod messages;
mod sidr;
mod table;
mod terms;
mod transitions;

#[cfg(test)]
mod tests;

pub use alternate::AlternateState;
pub use connection::{Peer, State};
pub use listen::{Accepts, Addresses, Listen};
pub use manager::{Addressee, Cm, Cx, addressee};
pub use terms::{
    Accept, Alternate, AlternateAnswer, CmError, Connect, Ece, Ending, Event, EventKind, Ignored, ListenId, Origin,
    Outgoing, QpTerms, Refusal, Resolution, Resolve, Route, Settings,
};
