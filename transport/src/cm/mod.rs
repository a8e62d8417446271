//! Connection management: the state machines behind `rdma_connect`, as the InfiniBand CM speaks on
//! queue pair 1 (IBA §12).
//!
//! [`Cm`] holds all connections and lookups of one device. Like a queue pair it does no I/O, has no
//! clock, and is driven from outside. It has four kinds of method:
//!
//! 1. getters: [`Cm::state`], [`Cm::alternate_state`], [`Cm::qp_terms`], [`Cm::len`], [`Cm::all`];
//! 2. verbs of the program: `listen`, `connect`, `accept`, `confirm`, `reject`, `delay`,
//!    `establish`, `disconnect`, `load_alternate`, `answer_alternate`, `migrated`, `resolve`,
//!    `answer`, `destroy`, `shut_down`;
//! 3. inputs: [`Cm::handle_message`] when a message arrived, [`Cm::handle_timeout`] when
//!    [`Cm::poll_timeout`] is due;
//! 4. outputs: [`Cm::poll_transmit`], [`Cm::poll_event`], [`Cm::poll_timeout`]: after any verb or
//!    input fetch all of them.
//!
//! The time and unpredictable numbers come in with a call as [`Cx`] and are not stored; PSNs are in
//! what the program says.
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
//!           ▼ DREQ ──────────────────────────────────────────►    ▼ Disconnected(Asked)
//!       DreqSent                                              DreqRcvd
//!           │ Disconnected                                        │ disconnect
//!           ▼ ◄────────────────────────────────────────────  DREP ▼
//!       TimeWait ── TimeWaitExit ─► gone                      TimeWait ── TimeWaitExit ─► gone
//! ```
//!
//! `reject` in ReqRcvd or RepRcvd and their MRA states sends a REJ, and the connection is gone; so
//! is that of who gets the REJ; but a REQ (or a lookup) that finds nobody listening may be repeated
//! for a while. REQ, REP and DREQ are repeated until their answer comes; after the last repetition
//! a REQ or REP ends in `Unreachable` and a REJ for timeout, a DREQ in TimeWait. Both ends may send
//! a DREQ at once: each answers the other's. A destroyed connection goes on without telling anybody
//! until the peer knows.
//!
//! # A peer that lies
//!
//! A message speaks for a connection only if it comes from its peer's address and names both ends
//! as they are (D8 of the design). What fits nothing is answered by at most one message to where it
//! came from: REP and RTU by a REJ, DREQ by a DREP. What a peer can make us hold is bounded: by the
//! backlog of each listener, by [`Settings::max_connections`], and no time that it asks for is
//! taken longer than a minute.
//!
//! # Files
//!
//! `terms` is what programs say and hear; `connection` is one connection, `transitions` what moves
//! it, `alternate` its alternate path; `messages` fills messages in and checks requests; `sidr` is
//! the lookup of datagram services; `table` finds connections, `listen` listeners; `manager` is
//! [`Cm`] itself, which gives messages to them.

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
pub use listen::{Addresses, Listen, Takes};
pub use manager::{Addressee, Cm, Cx, addressee};
pub use terms::{
    Accept, Alternate, AlternateAnswer, CmError, Connect, Ece, Ending, Event, EventKind, Ignored, ListenId, Origin,
    Outgoing, QpTerms, Refusal, Resolution, Resolve, Route, Settings,
};
