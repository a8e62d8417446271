//! The order of this crate's locks, outermost first. All of them are outside of those of `roxe` and
//! the provider ([`roxe_provider::lock`]).

roxe_provider::ranks! { pub(crate), 6_000.. ;
    /// `epoll`: sets by descriptor.
    EpollSets,
    /// `epoll`: the members of one set.
    EpollMembers,
    /// `table`: sockets by descriptor.
    Table,
    /// `stream`: whose turn it is to send.
    SendTurn,
    /// `stream`: whose turn it is to receive.
    RecvTurn,
    /// `service`: the sockets that the thread looks after.
    Service,
    /// `stream`: one stream.
    Stream,
    /// `datagram`: one datagram socket.
    Datagram,
}
