//! Numbers and codes of connection management as types. Unknown codes are kept.

use super::bits::{Bits, Field, MadError, Number, numbers, read_array, write_array};
use crate::num::{PathMtu, narrow};
use core::fmt;
use core::time::Duration;

/// Communication id: the number that one end has given to a connection. In a message, "local" is
/// the sender's id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommId(pub u32);

impl CommId {
    /// No connection: the local id in the rejection of a new REQ.
    pub const NONE: Self = Self(0);
    const SERIAL_BITS: u32 = 20;
    /// Number of ids with the same [prefix](Self::prefix).
    pub const PER_PREFIX: usize = 1 << Self::SERIAL_BITS;

    /// Returns the id of the 12 low bits of `prefix`, then the 20 low bits of `serial`.
    pub const fn with_prefix(prefix: u16, serial: u32) -> Self {
        Self((prefix as u32) << Self::SERIAL_BITS | serial & (Self::PER_PREFIX as u32 - 1))
    }

    /// Returns the upper 12 bits. In ids that roxe assigns they identify the process.
    // clause: CM-ID
    pub const fn prefix(self) -> u16 {
        (self.0 >> Self::SERIAL_BITS) as u16
    }
}

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Transaction id of a MAD: an opaque number that an answer copies from its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TransactionId(pub u64);

/// GUID of a channel adapter, as a number in host byte order (its first byte on the wire is the
/// highest).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Guid(pub u64);

/// Service of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// Creates the service of `port` (host byte order) in a port space of RDMA CM (Linux cma.c:
    /// port space and port, 16 bits each).
    // clause: CM-SERVICE-ID
    pub const fn new(space: PortSpace, port: u16) -> Self {
        Self((space.code() as u64) << 16 | port as u64)
    }

    /// Returns the port space and port, if this is a service of RDMA CM.
    pub fn port(self) -> Option<(PortSpace, u16)> {
        let space = PortSpace::ALL.into_iter().find(|space| u64::from(space.code()) == self.0 >> 16)?;
        Some((space, self.0 as u16))
    }
}

/// Port space of RDMA CM (`enum rdma_port_space`; Linux include/uapi/rdma/rdma_user_cm.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum PortSpace {
    /// IP over InfiniBand, datagrams.
    Ipoib = 0x0002,
    /// Connections over IP addresses.
    Tcp = 0x0106,
    /// Datagram services at IP addresses.
    Udp = 0x0111,
    /// Any service.
    Ib = 0x013f,
}

impl PortSpace {
    const ALL: [Self; 4] = [Self::Ipoib, Self::Tcp, Self::Udp, Self::Ib];

    /// Returns the number of `RDMA_PS_*`.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// Returns a short name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipoib => "ipoib",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Ib => "ib",
        }
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port() {
            Some((space, port)) => write!(f, "{}:{port}", space.name()),
            None => write!(f, "{:#018x}", self.0),
        }
    }
}

narrow! {
    /// A time code of messages: 4.096 µs times a power of two.
    #[derive(PartialOrd, Ord)]
    TimeCode: 5 bits of u8;
    /// Flow label of a path.
    FlowLabel: 20 bits of u32;
    /// Vendor of the options in the attribute modifier of a MAD (enhanced connection
    /// establishment): an OUI, 0 for none.
    VendorId: 24 bits of u32;
    /// The path MTU of a REQ. Undefined values are kept, because a REJ must answer them.
    MtuCode: 4 bits of u8;
}

impl TimeCode {
    /// Returns the time: 4.096 µs to 2.4 h.
    // clause: CM-TIME
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }
}

/// A number of `WIDTH` bits, at most 8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uint<const WIDTH: u32>(u8);

impl<const WIDTH: u32> Uint<WIDTH> {
    /// The largest number of that many bits.
    pub const MAX: Self = Self(u8::MAX.unbounded_shr(8_u32.saturating_sub(WIDTH)));

    /// Creates the number from the low `WIDTH` bits of `value`.
    pub const fn new(value: u8) -> Self {
        Self(value & Self::MAX.0)
    }

    /// Returns the number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl<const WIDTH: u32> Number for Uint<WIDTH> {
    fn from_number(number: u64) -> Self {
        Self::new(number as u8)
    }

    fn to_number(&self) -> u64 {
        u64::from(self.0)
    }
}

impl MtuCode {
    /// Returns the path MTU with this code, if there is one.
    pub fn mtu(self) -> Option<PathMtu> {
        PathMtu::from_code(self.0)
    }
}

impl From<PathMtu> for MtuCode {
    fn from(mtu: PathMtu) -> Self {
        Self(mtu as u8)
    }
}

/// Private data of a program: always `N` bytes on the wire, padded with zeros; the length is not
/// transmitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateData<const N: usize>([u8; N]);

impl<const N: usize> PrivateData<N> {
    /// All zero.
    pub const EMPTY: Self = Self([0; N]);

    /// Creates private data of `bytes`, padded with zeros; `None` if there are more than `N` bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut all = [0; N];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self(all))
    }

    /// Returns all bytes, including the padding.
    pub const fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> Default for PrivateData<N> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<const N: usize> Field for PrivateData<N> {
    fn read(area: &[u8], at: &[Bits]) -> Result<Self, MadError> {
        read_array(area, at.first()).map(Self)
    }

    fn write(&self, area: &mut [u8], at: &[Bits]) {
        write_array(area, at.first(), &self.0);
    }
}

/// Additional information about a refusal: at most 72 bytes with their length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    len: u8,
    bytes: [u8; Self::MAX],
}

impl Info {
    /// Maximum length in bytes.
    pub const MAX: usize = 72;

    /// No bytes.
    pub const EMPTY: Self = Self { len: 0, bytes: [0; Self::MAX] };

    /// Creates the information `info`; `None` if it is longer than [`Info::MAX`] bytes.
    pub fn new(info: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX];
        bytes.get_mut(..info.len())?.copy_from_slice(info);
        Some(Self { len: u8::try_from(info.len()).ok()?, bytes })
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl Default for Info {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// Written in two pieces: the length, then the bytes.
impl Field for Info {
    // clause: CM-INFO
    fn read(area: &[u8], at: &[Bits]) -> Result<Self, MadError> {
        let len = u8::read(area, at.get(..1).unwrap_or_default())?;
        if usize::from(len) > Self::MAX {
            return Err(MadError::InfoLength);
        }
        Ok(Self { len, bytes: read_array(area, at.get(1))? })
    }

    fn write(&self, area: &mut [u8], at: &[Bits]) {
        self.len.write(area, at.get(..1).unwrap_or_default());
        write_array(area, at.get(1), &self.bytes);
    }
}

numbers! {
    CommId, u32: CommId, |id: Self| id.0;
    TransactionId, u64: TransactionId, |id: Self| id.0;
    Guid, u64: Guid, |guid: Self| guid.0;
    ServiceId, u64: ServiceId, |id: Self| id.0;
    TimeCode, u8: Self::new, Self::get;
    FlowLabel, u32: Self::new, Self::get;
    VendorId, u32: Self::new, Self::get;
    MtuCode, u8: Self::new, Self::get;
}

/// An enum of codes on the wire with their meaning in words, and `Other` for other codes.
macro_rules! codes {
    ($(#[$meta:meta])* $name:ident: $int:ty { $($variant:ident = $code:literal, $text:literal;)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $(
                #[doc = concat!($text, " (", $code, ").")]
                $variant,
            )+
            /// A code that is not in this list.
            Other($int),
        }

        impl $name {
            /// All codes with a meaning.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Returns the meaning of `code`.
            pub const fn from_code(code: $int) -> Self {
                match code {
                    $($code => Self::$variant,)+
                    other => Self::Other(other),
                }
            }

            /// Returns the number on the wire.
            pub const fn code(self) -> $int {
                match self {
                    $(Self::$variant => $code,)+
                    Self::Other(other) => other,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant => write!(f, "{} ({})", $code, $text),)+
                    Self::Other(other) => write!(f, "{other}"),
                }
            }
        }

        numbers! { $name, $int: Self::from_code, Self::code; }
    };
}

codes! {
    /// Reason of a REJ (IBA §12.6.7.2; Linux `enum ib_cm_rej_reason`).
    // clause: CM-REASON
    RejReason: u16 {
        NoQp = 1, "no QP";
        NoEec = 2, "no EEC";
        NoResources = 3, "no resources";
        Timeout = 4, "timeout";
        Unsupported = 5, "unsupported request";
        InvalidCommId = 6, "invalid comm id";
        InvalidCommInstance = 7, "invalid comm instance";
        InvalidServiceId = 8, "invalid service id";
        InvalidTransportType = 9, "invalid transport type";
        StaleConnection = 10, "stale connection";
        RdcDoesNotExist = 11, "RDC does not exist";
        InvalidGid = 12, "primary GID rejected";
        InvalidLid = 13, "primary LID rejected";
        InvalidSl = 14, "primary SL rejected";
        InvalidTrafficClass = 15, "primary traffic class rejected";
        InvalidHopLimit = 16, "primary hop limit rejected";
        InvalidPacketRate = 17, "primary packet rate rejected";
        InvalidAltGid = 18, "alternate GID rejected";
        InvalidAltLid = 19, "alternate LID rejected";
        InvalidAltSl = 20, "alternate SL rejected";
        InvalidAltTrafficClass = 21, "alternate traffic class rejected";
        InvalidAltHopLimit = 22, "alternate hop limit rejected";
        InvalidAltPacketRate = 23, "alternate packet rate rejected";
        PortCmRedirect = 24, "port and CM redirect";
        PortRedirect = 25, "port redirect";
        InvalidMtu = 26, "invalid path MTU";
        InsufficientResponderResources = 27, "insufficient responder resources";
        ConsumerDefined = 28, "consumer defined";
        InvalidRnrRetry = 29, "RNR retry count rejected";
        DuplicateCommId = 30, "duplicate local comm id";
        InvalidClassVersion = 31, "unsupported class version";
        InvalidFlowLabel = 32, "primary flow label rejected";
        InvalidAltFlowLabel = 33, "alternate flow label rejected";
        VendorOptionNotSupported = 35, "vendor option not supported";
    }
}

codes! {
    /// Status of a LAP (IBA §12.8.2; Linux `enum ib_cm_apr_status`).
    AprStatus: u8 {
        Success = 0, "success";
        InvalidCommId = 1, "invalid comm id";
        Unsupported = 2, "unsupported";
        Reject = 3, "reject";
        Redirect = 4, "redirect";
        IsCurrent = 5, "is the current path";
        InvalidQpn = 6, "invalid QPN or EECN";
        InvalidLid = 7, "invalid LID";
        InvalidGid = 8, "invalid GID";
        InvalidFlowLabel = 9, "invalid flow label";
        InvalidTrafficClass = 10, "invalid traffic class";
        InvalidHopLimit = 11, "invalid hop limit";
        InvalidPacketRate = 12, "invalid packet rate";
        InvalidSl = 13, "invalid SL";
    }
}

codes! {
    /// Status of a SIDR_REQ (IBA §12.11.2; Linux `enum ib_cm_sidr_status`).
    SidrStatus: u8 {
        Success = 0, "success";
        Unsupported = 1, "service id not supported";
        Reject = 2, "rejected by the service";
        NoQp = 3, "no QP";
        Redirect = 4, "redirect";
        UnsupportedVersion = 5, "unsupported version";
    }
}

codes! {
    /// Message answered by an MRA or a REJ: 2 bits.
    Answered: u8 {
        Req = 0, "REQ";
        Rep = 1, "REP";
        Neither = 2, "LAP or none";
    }
}

/// Transport of a connection: 2 bits of service type, and 3 bits of extended type that count if the
/// first are 3.
// clause: CM-TRANSPORT
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection (0).
    #[default]
    Rc,
    /// Unreliable connection (1).
    Uc,
    /// Reliable datagram (2).
    Rd,
    /// Extended reliable connection (3, extended type 1).
    Xrc,
    /// Another extended type (3 and this number of 3 bits).
    Extended(u8),
}

impl Transport {
    /// Returns the transport of these 5 bits: service type, then extended type.
    const fn from_bits(bits: u8) -> Self {
        match (bits >> 3 & 3, bits & 7) {
            (0, _) => Self::Rc,
            (1, _) => Self::Uc,
            (2, _) => Self::Rd,
            (_, 1) => Self::Xrc,
            (_, extended) => Self::Extended(extended),
        }
    }

    const fn to_bits(self) -> u8 {
        match self {
            Self::Rc => 0,
            Self::Uc => 1 << 3,
            Self::Rd => 2 << 3,
            Self::Xrc => 3 << 3 | 1,
            Self::Extended(extended) => 3 << 3 | extended & 7,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rc => f.write_str("RC"),
            Self::Uc => f.write_str("UC"),
            Self::Rd => f.write_str("RD"),
            Self::Xrc => f.write_str("XRC"),
            Self::Extended(extended) => write!(f, "extended {extended}"),
        }
    }
}

numbers! { Transport, u8: Self::from_bits, Self::to_bits; }
