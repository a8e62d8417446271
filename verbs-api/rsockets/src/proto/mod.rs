//! The protocol of rsockets, without I/O, clock and blocking.
//!
//! Streams: `conn.rs` has the private data that both sides exchange while connecting, `message.rs`
//! the 32-bit immediate data of every WRITE, and `stream.rs` the two directions. It decides where
//! and when outgoing bytes are written, which incoming bytes are unread, and when their space is
//! granted to the peer again. Datagrams: `datagram.rs` has their headers.

#[cfg(feature = "fuzz")]
pub(crate) mod check;
pub(crate) mod conn;
pub(crate) mod datagram;
pub(crate) mod message;
pub(crate) mod stream;

/// The peer violated the protocol; the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation;
