//! A packet, as an engine tells it. Pure data.

use roxe_transport::cx::PacketNote;
use roxe_transport::time::Instant;
use roxe_wire::{Gid, Header, Qpn};

/// A packet that an engine sent or received.
#[derive(Clone, Debug)]
pub struct TracedPacket {
    /// When.
    pub at: Instant,
    /// The queue pair of this process.
    pub qpn: Qpn,
    /// Why it leaves; `None`: it arrived.
    pub sent: Option<PacketNote>,
    /// The address of the other end.
    pub peer: Gid,
    /// Its headers and the bytes of its payload; `None`: it is no packet.
    pub header: Option<(Header, usize)>,
    /// What the connection manager says in it.
    pub message: Option<String>,
    /// What a fault rule did to it, or what is wrong with it.
    pub remark: Option<String>,
}
