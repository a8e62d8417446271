//! The lock ranks of this crate, outermost first. All are outside the provider's
//! ([`roxe_provider::lock`]).
//!
//! Two kinds of locks have no rank: those that a program locks with `ibv_start_poll` and
//! `ibv_wr_start` and holds as long as it likes, and the counts of unacknowledged events, under
//! which no other lock is locked.

roxe_provider::ranks! { pub(crate), 4_000.. ;
    /// `rdmacm::id`: held by the thread that takes the next event of a channel.
    ChannelTurn,
    /// `rdmacm::id`: state of an identifier that its C structure does not show.
    CmIdState,
    /// `rdmacm::devices`: devices that librdmacm has opened.
    OpenedDevices,
    /// `device`: structures of all devices.
    DeviceEntries,
    /// `object`: live objects.
    Registry,
}
