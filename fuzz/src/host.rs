//! Fuzz targets for input that another process of this host controls: messages in a mailbox, and
//! the bytes of a ring.

/// The input is a message in a mailbox.
///
/// Properties: parsing never panics; a parsed value is written to a message that parses to an equal
/// value.
///
/// # Panics
/// If a property does not hold.
pub fn mailbox(data: &[u8]) {
    roxe_net::forward::check(data);
}

/// The input is the bytes of a ring.
///
/// Properties: reading ends and never panics; every returned record is inside the ring and as long
/// as its header says.
///
/// # Panics
/// If a property does not hold.
pub fn ring(data: &[u8]) {
    roxe_net::shm::check_ring(data);
}
