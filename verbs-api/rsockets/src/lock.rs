//! The order of this crate's locks, outermost first, all outside those of [`roxe_provider::lock`].

roxe_provider::ranks! { pub(crate), 6_000.. ;
    /// `epoll`: sets by descriptor.
    EpollSets,
    /// `epoll`: the members of one set.
    EpollMembers,
    /// `socket`: sockets by descriptor.
    Table,
    /// `stream`: the thread that sends.
    SendTurn,
    /// `stream`: the thread that receives.
    RecvTurn,
    /// `service`: the sockets of the background thread.
    Service,
    /// `stream`: one stream.
    Stream,
    /// `datagram`: one datagram socket.
    Datagram,
}
