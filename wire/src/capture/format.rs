//! What both formats of capture files say of a frame, and the numbers that readers and writers
//! share. Touches nothing.

/// What stands in front of the IP header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// Ethernet, with or without VLAN tags.
    Ethernet,
    /// Nothing: the frame begins with its IP header.
    RawIp,
    /// 4 bytes of BSD loopback header.
    BsdLoopback,
    /// Linux cooked capture: all interfaces, version 1.
    LinuxCooked,
    /// Linux cooked capture: all interfaces, version 2.
    LinuxCooked2,
    /// Another one, by its number.
    Other(u16),
}

impl LinkType {
    /// From the number in the file (`LINKTYPE_*`).
    pub const fn from_number(number: u16) -> Self {
        match number {
            0 | 108 => Self::BsdLoopback,
            1 => Self::Ethernet,
            // 12 and 14 are DLT_RAW of old files.
            12 | 14 | RAW_IP | 228 | 229 => Self::RawIp,
            113 => Self::LinuxCooked,
            276 => Self::LinuxCooked2,
            other => Self::Other(other),
        }
    }
}

/// `LINKTYPE_RAW`: an IPv4 or an IPv6 packet, as its first byte says.
pub(super) const RAW_IP: u16 = 101;

/// Which way a frame went through the interface that recorded it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The frame came in.
    Inbound,
    /// The frame went out.
    Outbound,
}

impl Direction {
    /// The two lowest bits of `epb_flags`.
    pub(super) const fn to_flags(self) -> u32 {
        match self {
            Self::Inbound => 1,
            Self::Outbound => 2,
        }
    }

    pub(super) const fn from_flags(flags: u32) -> Option<Self> {
        match flags & 3 {
            1 => Some(Self::Inbound),
            2 => Some(Self::Outbound),
            _ => None,
        }
    }
}

/// A captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// When, in nanoseconds since 1970; 0 if the file does not say.
    pub timestamp_ns: u64,
    /// What it begins with.
    pub link: LinkType,
    /// Which way it went, if the file says.
    pub direction: Option<Direction>,
    /// The last remark on it; empty if there is none.
    pub comment: &'a str,
    /// Its bytes, as many as were captured.
    pub data: &'a [u8],
    /// Bytes that it had on the wire.
    pub length: u64,
}

impl Frame<'_> {
    /// Returns true if the capture has fewer bytes than the wire had.
    pub const fn is_cut(&self) -> bool {
        self.length > self.data.len() as u64
    }

    /// A frame without bytes of which nothing is known but the kind of its interface.
    pub const fn new(link: LinkType) -> Self {
        Self { timestamp_ns: 0, link, direction: None, comment: "", data: &[], length: 0 }
    }
}

pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
pub(super) const INTERFACE: u32 = 1;
pub(super) const SIMPLE_PACKET: u32 = 3;
pub(super) const ENHANCED_PACKET: u32 = 6;

/// Codes of the options that are read or written. The same code means different things in different
/// blocks.
pub(super) mod option {
    pub(crate) const END: u16 = 0;
    pub(crate) const COMMENT: u16 = 1;
    /// The name of an interface.
    pub(crate) const NAME: u16 = 2;
    /// The direction of a packet, and more.
    pub(crate) const FLAGS: u16 = 2;
    /// The program that wrote a section.
    pub(crate) const APPLICATION: u16 = 4;
    /// The unit of an interface's timestamps, a negative power of 10 (or of 2 with the top bit
    /// set).
    pub(crate) const RESOLUTION: u16 = 9;
}
