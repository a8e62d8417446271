//! The lock ranks of this crate, outermost first. All are outside the provider's
//! ([`roxe_provider::lock`]).

roxe_provider::ranks! { pub(crate), 6_000.. ;
    /// `epoll`: sets by descriptor.
    EpollSets,
    /// `epoll`: the members of one set.
    EpollMembers,
    /// `socket`: sockets by descriptor.
    Table,
    /// `stream`: held by the thread that sends.
    SendTurn,
    /// `stream`: held by the thread that receives.
    RecvTurn,
    /// `service`: the sockets of the background thread.
    Service,
    /// `stream`: the state of one stream.
    Stream,
    /// `datagram`: the state of one datagram socket.
    Datagram,
}
