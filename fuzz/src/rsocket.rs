//! Fuzz target: datagrams and connection data that a peer sends to an rsocket.

/// The input is a datagram, or what a peer says while it connects and steps behind that.
///
/// Properties: headers are read as they are written; whatever messages come, no more is unread than
/// the buffer holds, no more posted than there is room for, and a violation ends the stream.
///
/// # Panics
/// When a property does not hold.
pub fn rsocket(data: &[u8]) {
    roxe_rsockets::check_protocol(data);
}
