//! Input that another process of this host controls: a frame in a mailbox, the bytes of a ring.

/// Properties: parsing never panics; a parsed value is written back to text that parses to an equal
/// value.
///
/// # Panics
/// If a property does not hold.
pub fn mailbox(data: &[u8]) {
    roxe_net::forward::check(data);
}

/// Properties: reading ends, and never panics; what is shown lies in the ring and is as long as its
/// header says.
///
/// # Panics
/// If a property does not hold.
pub fn ring(data: &[u8]) {
    roxe_net::shm::check_ring(data);
}
