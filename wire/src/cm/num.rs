//! The numbers of connection management as types.
//!
//! Touches `num` of the crate.

use super::bits::{Bits, Field, Number, numbers, read_array, write_array};
use super::error::MadError;
use crate::num::PathMtu;
use core::fmt;
use core::time::Duration;

/// Communication id: the number that one end has given to a connection. In a message "local" is the
/// sender's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommId(pub u32);

impl CommId {
    /// No connection: the local id of a REJ that refuses a REQ nobody listened to.
    pub const NONE: Self = Self(0);
    const SERIAL_BITS: u32 = 20;
    /// How many ids have the same [prefix](Self::prefix).
    pub const PER_PREFIX: usize = 1 << Self::SERIAL_BITS;

    /// The id of which the upper 12 bits are those of `prefix` and the others those of `serial`.
    pub const fn with_prefix(prefix: u16, serial: u32) -> Self {
        Self((prefix as u32) << Self::SERIAL_BITS | serial & (Self::PER_PREFIX as u32 - 1))
    }

    /// The upper 12 bits. Of our own ids they say which process has the connection.
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

/// Transaction id of a MAD: opaque, an answer repeats the one of its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TransactionId(pub u64);

/// GUID of a channel adapter, as a number in host order (its first byte on the wire is the
/// highest).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Guid(pub u64);

/// What a listener listens on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The service of `port` (host order) in a port space of RDMA CM (Linux cma.c: port space and
    /// port, 16 bits each).
    // clause: CM-SERVICE-ID
    pub const fn new(space: PortSpace, port: u16) -> Self {
        Self((space.code() as u64) << 16 | port as u64)
    }

    /// Port space and port, if this is a service of RDMA CM.
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
    /// Connections.
    Tcp = 0x0106,
    /// Datagrams.
    Udp = 0x0111,
    /// Any service.
    Ib = 0x013f,
}

impl PortSpace {
    const ALL: [Self; 4] = [Self::Ipoib, Self::Tcp, Self::Udp, Self::Ib];

    /// The number of `RDMA_PS_*`.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// A short name.
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

/// A time as messages carry it: 5 bits, 4.096 us times a power of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TimeCode(u8);

impl TimeCode {
    /// The low 5 bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// The code, 0..32.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The time: 4.096 us to 2.4 h.
    // clause: CM-TIME
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }
}

/// A number of `WIDTH` bits, at most 8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Small<const WIDTH: u32>(u8);

impl<const WIDTH: u32> Small<WIDTH> {
    /// The largest number of that many bits.
    pub const MAX: Self = Self(u8::MAX.unbounded_shr(8_u32.saturating_sub(WIDTH)));

    /// The low `WIDTH` bits of `value`.
    pub const fn new(value: u8) -> Self {
        Self(value & Self::MAX.0)
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl<const WIDTH: u32> Number for Small<WIDTH> {
    fn from_number(number: u64) -> Self {
        Self::new(number as u8)
    }

    fn to_number(&self) -> u64 {
        u64::from(self.0)
    }
}

/// Flow label of a path: 20 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowLabel(u32);

impl FlowLabel {
    /// The low 20 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & 0x000f_ffff)
    }

    /// The label, 0..2^20.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Who defines the options that the attribute modifier of a MAD selects (enhanced connection
/// establishment): 24 bits, an OUI; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VendorId(u32);

impl VendorId {
    /// The low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & 0x00ff_ffff)
    }

    /// The number, 0..2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The path MTU of a REQ: 4 bits, of which five values are defined. The others are refused with a
/// reason, so they are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MtuCode(u8);

impl MtuCode {
    /// The low 4 bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & 0xf)
    }

    /// The code, 0..16.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The path MTU with this code, if there is one.
    pub fn mtu(self) -> Option<PathMtu> {
        PathMtu::from_code(self.0)
    }
}

impl From<PathMtu> for MtuCode {
    fn from(mtu: PathMtu) -> Self {
        Self(mtu as u8)
    }
}

/// What a program says to the other's with a message: always `N` bytes on the wire, which do not
/// tell how many of them were given; the rest is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateData<const N: usize>([u8; N]);

impl<const N: usize> PrivateData<N> {
    /// Nothing said: all zero.
    pub const EMPTY: Self = Self([0; N]);

    /// `bytes`, then zeros. `None` if there are more than `N`.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut all = [0; N];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self(all))
    }

    /// All bytes, those included that the program did not set.
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

/// Additional information about a refusal: at most 72 bytes, and how many of them count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    len: u8,
    bytes: [u8; Self::MAX],
}

impl Info {
    /// Bytes that it holds at most.
    pub const MAX: usize = 72;

    /// No bytes.
    pub const EMPTY: Self = Self { len: 0, bytes: [0; Self::MAX] };

    /// `info`, if it is not more than [`Info::MAX`] bytes.
    pub fn new(info: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX];
        bytes.get_mut(..info.len())?.copy_from_slice(info);
        Some(Self { len: u8::try_from(info.len()).ok()?, bytes })
    }

    /// The bytes that count.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl Default for Info {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// Lies in two pieces: the length, then the bytes.
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
