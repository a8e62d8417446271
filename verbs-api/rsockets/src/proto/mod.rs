//! The protocol of rsockets, as pure decisions: nothing here does I/O, reads a clock or blocks.
//!
//! Of a stream, `conn.rs` is the data exchanged while connecting, `message.rs` the 32-bit immediate
//! data of every WRITE, and `stream.rs` the two directions: where outgoing bytes go and when, and
//! which incoming bytes are unread and when to grant their space again. Datagrams have only
//! headers: `datagram.rs`.

#[cfg(feature = "fuzz")]
pub(crate) mod check;
pub(crate) mod conn;
pub(crate) mod datagram;
pub(crate) mod message;
pub(crate) mod stream;

/// The peer violated the protocol; the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation;
