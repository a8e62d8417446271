//! The most bytes of private data that a program may give, by verb and kind of id, and how many of
//! them its peer is told of.

/// `connect` of an id with IP addresses: what the addresses leave of 92 bytes.
pub const CONNECT: usize = 56;
/// `connect` of an id with an `AF_IB` address.
pub const CONNECT_IB: usize = 92;
/// `connect` of a datagram id with IP addresses.
pub const LOOKUP: usize = 180;
/// `connect` of a datagram id with an `AF_IB` address.
pub const LOOKUP_IB: usize = 216;
/// `accept`.
pub const ACCEPT: usize = 196;
/// `accept` and `reject` of a datagram id.
pub const LOOKUP_REPLY: usize = 136;
/// `reject`.
pub const REJECT: usize = 148;
