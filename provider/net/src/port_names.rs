//! Names in the runtime directory for source ports besides the RoCE port: a process leaves one for
//! each port that it sends from to its own address, and receivers take the packets of that port for
//! those of their user.

use crate::named::NamedSocket;
use crate::service::AddressPart;
use roxe_wire::Gid;
use std::fmt;
use std::io;

/// The name of a port that a process of this user sends from.
pub(super) struct PortName {
    pub(super) address: Gid,
    pub(super) port: u16,
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", PortsOf(self.address), self.port)
    }
}

/// What the names of all ports of an address begin with.
pub(super) struct PortsOf(pub(super) Gid);

impl fmt::Display for PortsOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port-{}-", AddressPart(self.0))
    }
}

/// Says, as long as the result lives, that `port` of `address` is of this user. Do this before
/// anything leaves from there.
pub(super) fn claim(address: Gid, port: u16) -> io::Result<NamedSocket> {
    NamedSocket::bind(&PortName { address, port })
}
