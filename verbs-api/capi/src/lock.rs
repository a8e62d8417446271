//! The order of this crate's locks, outermost first, all outside those of [`roxe_provider::lock`].
//!
//! Two kinds have no rank: locks that a program takes with `ibv_start_poll` and `ibv_wr_start` and
//! holds as long as it likes, and counts of unacknowledged events, under which no other is taken.

roxe_provider::ranks! { pub(crate), 4_000.. ;
    /// `rdmacm::id`: the thread that takes the next event.
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
