//! What rsockets say to each other, and when: pure decisions. Nothing here does I/O, reads a clock
//! or blocks.
//!
//! A stream has three parts. `conn.rs` is what both sides tell each other while they connect: where
//! the receive buffer lies and how much may be sent. `message.rs` is the 32-bit message that goes
//! as immediate data with every WRITE. `stream.rs` has the two directions: the outgoing
//! one knows where the next byte goes and whether it may, the incoming one what has arrived and
//! when to give back what the program has read.
//!
//! Datagrams need only headers: `datagram.rs`.

#[cfg(feature = "fuzz")]
pub(crate) mod check;
pub(crate) mod conn;
pub(crate) mod datagram;
pub(crate) mod message;
pub(crate) mod stream;

/// The peer broke the protocol; the connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation;
