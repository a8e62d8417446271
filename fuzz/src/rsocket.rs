//! Fuzz target: datagrams and connection data that a peer sends to an rsocket.

/// The input is a datagram, or the messages of a peer while it connects and afterwards.
///
/// Properties: headers round-trip; unread bytes never exceed the buffer, and posted bytes never
/// exceed the peer's room; a protocol violation ends the stream.
///
/// # Panics
/// If a property does not hold.
pub fn rsocket(data: &[u8]) {
    roxe_rsockets::check_protocol(data);
}
