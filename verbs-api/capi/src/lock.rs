//! The order of this crate's locks, outermost first. All of them are outside of those of the crates
//! that it uses ([`roxe_provider::lock`]).
//!
//! Not in it: the locks that a program takes by `ibv_start_poll` and `ibv_wr_start` and holds as
//! long as it likes, in an order of its own, and the counts of events that wait for their
//! acknowledgement, under which nothing else is done.

roxe_provider::ranks! { pub(crate), 4_000.. ;
    /// `rdmacm::id`: who takes the next event.
    ChannelTurn,
    /// `rdmacm::id`: what the C structure of an identifier does not show.
    CmIdState,
    /// `rdmacm::devices`: the devices that librdmacm has opened.
    OpenedDevices,
    /// `device`: the structures of all devices.
    DeviceEntries,
    /// `object`: the objects alive.
    Register,
}
