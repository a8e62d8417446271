//! Capture files: reads frames from pcap and pcapng ([`frames`]), writes packets into pcapng
//! ([`write_packet`]).
//!
//! Tests, `roxe dump` and `ROXE_CAPTURE` use this module. Both sides work on bytes in memory.
//! Formats: the Internet drafts draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng. The reader
//! accepts any bytes, in either byte order, without panic and without allocation.
//!
//! The writer appends one complete block per call, in little endian with nanoseconds and raw IP,
//! which every tool reads. A file is one section, then its interfaces, then packets; an interface
//! may also follow later, before its first packet. The IP and UDP headers are built from
//! [`NetHeader`]: with IPv4 a valid header checksum and no UDP checksum, which RoCEv2 allows; with
//! IPv6 a valid UDP checksum, because tools complain about its absence.

use crate::bytes::Reader;
use crate::net::NetHeader;
use core::fmt;

/// Reason why a file, or the part after the last frame, cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureError {
    /// The file is neither pcap nor pcapng.
    UnknownFormat,
    /// The file ends within a header, block or frame.
    Truncated,
    /// A length or an interface number in a block is wrong.
    BadBlock,
    /// A frame has the index of an interface beyond the first [`MAX_INTERFACES`] of its section.
    TooManyInterfaces,
}

/// Maximum number of known interfaces of a section.
pub const MAX_INTERFACES: usize = 1024;

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownFormat => "neither a pcap nor a pcapng file",
            Self::Truncated => "the capture file ends too early",
            Self::BadBlock => "a block of the capture file contradicts itself",
            Self::TooManyInterfaces => "a frame has the index of an interface beyond the first 1024 of its section",
        })
    }
}

impl core::error::Error for CaptureError {}

/// Returns the frames of a complete capture file.
///
/// # Errors
/// [`CaptureError`] if the bytes do not begin like a capture file.
pub fn frames(file: &[u8]) -> Result<Frames<'_>, CaptureError> {
    let format = match Classic::open(file) {
        Some(classic) => Format::Classic(classic),
        None => Format::Blocks(Blocks::open(file)?),
    };
    Ok(Frames { format })
}

/// Iterator over the frames of a file. It ends after an error.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    format: Format<'a>,
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "the reader does not allocate, so the interfaces are inline")]
enum Format<'a> {
    Classic(Classic<'a>),
    Blocks(Blocks<'a>),
    Broken,
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, CaptureError>;

    fn next(&mut self) -> Option<Self::Item> {
        let frame = match &mut self.format {
            Format::Classic(classic) => classic.next_frame(),
            Format::Blocks(blocks) => blocks.next_frame(),
            Format::Broken => Ok(None),
        };
        if frame.is_err() {
            self.format = Format::Broken;
        }
        frame.transpose()
    }
}

/// Returns the IP packet in a frame, if any.
pub fn ip_packet(link: LinkType, frame: &[u8]) -> Option<&[u8]> {
    let mut rest = Reader(frame);
    match link {
        LinkType::RawIp => Some(frame),
        LinkType::BsdLoopback => rest.array::<4>().is_ok().then_some(rest.0),
        LinkType::Ethernet => {
            rest.array::<12>().ok()?;
            let mut ether_type = rest.u16().ok()?;
            while is_vlan_tag(ether_type) {
                rest.u16().ok()?;
                ether_type = rest.u16().ok()?;
            }
            is_ip(ether_type).then_some(rest.0)
        }
        LinkType::LinuxCooked => {
            rest.array::<14>().ok()?;
            is_ip(rest.u16().ok()?).then_some(rest.0)
        }
        LinkType::LinuxCooked2 => {
            let protocol = rest.u16().ok()?;
            rest.array::<18>().ok()?;
            is_ip(protocol).then_some(rest.0)
        }
        LinkType::Other(_) => None,
    }
}

const fn is_vlan_tag(ether_type: u16) -> bool {
    matches!(ether_type, 0x8100 | 0x88a8 | 0x9100)
}

const fn is_ip(ether_type: u16) -> bool {
    matches!(ether_type, 0x0800 | 0x86dd)
}

/// Byte order of a file or a section of one.
#[derive(Clone, Copy, Debug)]
enum Order {
    Big,
    Little,
}

/// A cursor with a byte order.
#[derive(Clone, Copy, Debug)]
struct Fields<'a> {
    order: Order,
    rest: Reader<'a>,
}

impl<'a> Fields<'a> {
    const fn new(order: Order, bytes: &'a [u8]) -> Self {
        Self { order, rest: Reader(bytes) }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CaptureError> {
        self.rest.array().copied().map_err(|_| CaptureError::Truncated)
    }

    fn u16(&mut self) -> Result<u16, CaptureError> {
        let bytes = self.array()?;
        Ok(match self.order {
            Order::Big => u16::from_be_bytes(bytes),
            Order::Little => u16::from_le_bytes(bytes),
        })
    }

    fn u32(&mut self) -> Result<u32, CaptureError> {
        let bytes = self.array()?;
        Ok(match self.order {
            Order::Big => u32::from_be_bytes(bytes),
            Order::Little => u32::from_le_bytes(bytes),
        })
    }

    fn bytes(&mut self, len: u32) -> Result<&'a [u8], CaptureError> {
        let len = usize::try_from(len).map_err(|_| CaptureError::Truncated)?;
        let (taken, rest) = self.rest.0.split_at_checked(len).ok_or(CaptureError::Truncated)?;
        self.rest = Reader(rest);
        Ok(taken)
    }

    /// Takes `len` bytes and skips the padding to a multiple of 4.
    fn padded(&mut self, len: u32) -> Result<&'a [u8], CaptureError> {
        let taken = self.bytes(len)?;
        self.bytes(len.wrapping_neg() % 4)?;
        Ok(taken)
    }

    const fn is_empty(&self) -> bool {
        self.rest.0.is_empty()
    }
}

/// Iterator over the options at the end of a block: code and value. It ends at a malformed option.
#[derive(Clone, Debug)]
struct Options<'a>(Fields<'a>);

impl<'a> Iterator for Options<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let code = self.0.u16().ok().filter(|code| *code != option::END)?;
        let len = self.0.u16().ok()?;
        Some((code, self.0.padded(len.into()).ok()?))
    }
}

/// A classic pcap file: one header, then records.
#[derive(Clone, Debug)]
struct Classic<'a> {
    link: LinkType,
    /// Nanoseconds per unit of the second half of a timestamp.
    unit_ns: u64,
    records: Fields<'a>,
}

impl<'a> Classic<'a> {
    /// Reads the file header. Returns `None` if the bytes do not begin like a pcap file.
    fn open(file: &'a [u8]) -> Option<Self> {
        let (order, unit_ns) = match file.first_chunk()? {
            [0xa1, 0xb2, 0xc3, 0xd4] => (Order::Big, 1000),
            [0xd4, 0xc3, 0xb2, 0xa1] => (Order::Little, 1000),
            [0xa1, 0xb2, 0x3c, 0x4d] => (Order::Big, 1),
            [0x4d, 0x3c, 0xb2, 0xa1] => (Order::Little, 1),
            _ => return None,
        };
        let mut records = Fields::new(order, file);
        records.array::<20>().ok()?;
        // The upper half describes the FCS of frames, which the IP length cuts off.
        let link = LinkType::from_number((records.u32().ok()? & 0xffff) as u16);
        Some(Self { link, unit_ns, records })
    }

    fn next_frame(&mut self) -> Result<Option<Frame<'a>>, CaptureError> {
        if self.records.is_empty() {
            return Ok(None);
        }
        let [seconds, fraction] = [self.records.u32()?, self.records.u32()?].map(u64::from);
        let [captured, length] = [self.records.u32()?, self.records.u32()?];
        let timestamp_ns = seconds * 1_000_000_000 + fraction * self.unit_ns;
        let data = self.records.bytes(captured)?;
        Ok(Some(Frame { timestamp_ns, data, length: length.into(), ..Frame::new(self.link) }))
    }
}

/// A pcapng file: sections of blocks; every section has its own byte order and interfaces.
#[derive(Clone, Debug)]
struct Blocks<'a> {
    /// Unread blocks.
    rest: Fields<'a>,
    /// The first interfaces of the current section; `None` if a block is broken.
    interfaces: [Option<Interface>; MAX_INTERFACES],
    /// Number of interfaces of the section so far.
    count: usize,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link: LinkType,
    /// Maximum captured bytes of a frame; 0 for no limit.
    snap_len: u32,
    /// `if_tsresol`: a negative power of 10, or of 2 with the top bit set.
    resolution: u8,
}

impl<'a> Blocks<'a> {
    fn open(file: &'a [u8]) -> Result<Self, CaptureError> {
        if !file.starts_with(&SECTION_HEADER.to_be_bytes()) {
            return Err(CaptureError::UnknownFormat);
        }
        // The section header at the start of the file sets the byte order.
        let rest = Fields::new(Order::Big, file);
        Ok(Self { rest, interfaces: [None; MAX_INTERFACES], count: 0 })
    }

    fn next_frame(&mut self) -> Result<Option<Frame<'a>>, CaptureError> {
        while !self.rest.is_empty() {
            let (kind, body) = next_block(&mut self.rest)?;
            match kind {
                SECTION_HEADER => self.count = 0,
                INTERFACE => {
                    if let Some(place) = self.interfaces.get_mut(self.count) {
                        *place = Interface::read(body).ok();
                    }
                    self.count += 1;
                }
                ENHANCED_PACKET => return self.enhanced(body).map(Some),
                SIMPLE_PACKET => return self.simple(body).map(Some),
                _ => {}
            }
        }
        Ok(None)
    }

    fn enhanced(&self, mut body: Fields<'a>) -> Result<Frame<'a>, CaptureError> {
        let id = body.u32()?;
        let interface = self.interface(id)?;
        let [high, low] = [body.u32()?, body.u32()?].map(u64::from);
        let [captured, length] = [body.u32()?, body.u32()?];
        let (timestamp_ns, length) = (interface.nanoseconds(high << 32 | low), length.into());
        let data = body.padded(captured)?;
        let mut frame = Frame { timestamp_ns, interface: id, data, length, ..Frame::new(interface.link) };
        for (code, value) in Options(body) {
            match code {
                option::COMMENT => frame.comment = core::str::from_utf8(value).unwrap_or_default(),
                option::FLAGS => {
                    let flags = Fields::new(body.order, value).u32().ok();
                    frame.direction = flags.and_then(Direction::from_flags);
                }
                _ => {}
            }
        }
        Ok(frame)
    }

    fn simple(&self, mut body: Fields<'a>) -> Result<Frame<'a>, CaptureError> {
        let interface = self.interface(0)?;
        let on_the_wire = body.u32()?;
        let limit = if interface.snap_len == 0 { u32::MAX } else { interface.snap_len };
        let data = body.bytes(on_the_wire.min(limit))?;
        Ok(Frame { data, length: on_the_wire.into(), ..Frame::new(interface.link) })
    }

    fn interface(&self, id: u32) -> Result<Interface, CaptureError> {
        let id = usize::try_from(id).ok().filter(|id| *id < self.count).ok_or(CaptureError::BadBlock)?;
        self.interfaces.get(id).ok_or(CaptureError::TooManyInterfaces)?.ok_or(CaptureError::BadBlock)
    }
}

/// Returns kind and body of the next block. A section header sets the byte order of `rest`.
fn next_block<'a>(rest: &mut Fields<'a>) -> Result<(u32, Fields<'a>), CaptureError> {
    let kind = rest.u32()?;
    if kind == SECTION_HEADER {
        rest.order = section_order(rest.rest.0)?;
    }
    let total = rest.u32()?;
    // The length counts the three words around the body.
    let body = total.checked_sub(12).filter(|len| len.is_multiple_of(4)).ok_or(CaptureError::BadBlock)?;
    let body = Fields::new(rest.order, rest.bytes(body)?);
    if rest.u32()? != total {
        return Err(CaptureError::BadBlock);
    }
    Ok((kind, body))
}

/// Returns the byte order of a section whose header continues with `bytes` after the block type.
fn section_order(bytes: &[u8]) -> Result<Order, CaptureError> {
    match bytes.first_chunk().ok_or(CaptureError::Truncated)? {
        [_, _, _, _, 0x1a, 0x2b, 0x3c, 0x4d] => Ok(Order::Big),
        [_, _, _, _, 0x4d, 0x3c, 0x2b, 0x1a] => Ok(Order::Little),
        _ => Err(CaptureError::BadBlock),
    }
}

impl Interface {
    const MICROSECONDS: u8 = 6;

    fn read(mut body: Fields<'_>) -> Result<Self, CaptureError> {
        let [link, _reserved] = [body.u16()?, body.u16()?];
        let snap_len = body.u32()?;
        let mut interface = Self { link: LinkType::from_number(link), snap_len, resolution: Self::MICROSECONDS };
        for (code, value) in Options(body) {
            if let (option::RESOLUTION, [resolution, ..]) = (code, value) {
                interface.resolution = *resolution;
            }
        }
        Ok(interface)
    }

    fn nanoseconds(self, timestamp: u64) -> u64 {
        let billionths = u128::from(timestamp) * 1_000_000_000;
        let exponent = u32::from(self.resolution & 0x7f);
        let base: u128 = if self.resolution & 0x80 == 0 { 10 } else { 2 };
        let divisor = base.checked_pow(exponent).unwrap_or(u128::MAX);
        u64::try_from(billionths / divisor).unwrap_or(u64::MAX)
    }
}

/// Link-layer header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// Ethernet, with or without VLAN tags.
    Ethernet,
    /// None: the frame begins with its IP header.
    RawIp,
    /// 4 bytes of BSD loopback header.
    BsdLoopback,
    /// Linux cooked capture: all interfaces, version 1.
    LinuxCooked,
    /// Linux cooked capture: all interfaces, version 2.
    LinuxCooked2,
    /// Another link type, by its number.
    Other(u16),
}

impl LinkType {
    /// Returns the type with this number (`LINKTYPE_*`).
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

/// `LINKTYPE_RAW`: IPv4 or IPv6, by the first byte.
const RAW_IP: u16 = 101;

/// Direction of a frame through the recording interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The interface received the frame.
    Inbound,
    /// The interface sent the frame.
    Outbound,
}

impl Direction {
    /// Returns the two lowest bits of `epb_flags`.
    const fn to_flags(self) -> u32 {
        match self {
            Self::Inbound => 1,
            Self::Outbound => 2,
        }
    }

    const fn from_flags(flags: u32) -> Option<Self> {
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
    /// Nanoseconds since 1970; 0 if unknown.
    pub timestamp_ns: u64,
    /// Link-layer header.
    pub link: LinkType,
    /// Number of the recording interface in its section, from 0.
    pub interface: u32,
    /// Direction, if recorded.
    pub direction: Option<Direction>,
    /// Last comment; empty if none.
    pub comment: &'a str,
    /// Captured bytes.
    pub data: &'a [u8],
    /// Original length in bytes.
    pub length: u64,
}

impl Frame<'_> {
    /// Returns true if the capture has fewer bytes than the wire had.
    pub const fn is_truncated(&self) -> bool {
        self.length > self.data.len() as u64
    }

    /// Creates an empty frame with only its link type known.
    pub const fn new(link: LinkType) -> Self {
        Self { timestamp_ns: 0, link, interface: 0, direction: None, comment: "", data: &[], length: 0 }
    }
}

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

/// Option codes. A code has different meanings in different blocks.
mod option {
    pub(crate) const END: u16 = 0;
    pub(crate) const COMMENT: u16 = 1;
    pub(crate) const NAME: u16 = 2;
    /// Packet flags, including the direction.
    pub(crate) const FLAGS: u16 = 2;
    /// Name of the writing program.
    pub(crate) const APPLICATION: u16 = 4;
    /// Timestamp resolution of an interface, a negative power of 10 (or of 2 with the top bit set).
    pub(crate) const RESOLUTION: u16 = 9;
}

/// Receives the bytes of a file, for example a `Vec<u8>`.
pub trait Sink: for<'a> Extend<&'a u8> {}

impl<T: for<'a> Extend<&'a u8>> Sink for T {}

/// A packet to write.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Number of the interface in the section, from 0.
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub timestamp_ns: u64,
    /// Direction at the interface.
    pub direction: Direction,
    /// Fields of the IP and UDP headers. The ICRC covers `ident`.
    pub net: NetHeader,
    /// UDP payload: from the BTH to the ICRC.
    pub payload: &'a [u8],
    /// Comment; none if empty. Truncated to [`MAX_OPTION`] bytes.
    pub comment: &'a str,
}

/// Maximum length of a text in bytes: the largest 16-bit number that needs no padding.
pub const MAX_OPTION: usize = 0xfffc;

/// Unknown length: the section ends with the file.
const SECTION_LENGTH: u64 = u64::MAX;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// Timestamp resolution of 10^-9 seconds.
const NANOSECONDS: u8 = 9;
/// Bytes around the body of a block: its type, and its length twice.
const BLOCK_OVERHEAD: usize = 12;

/// Begins a file or a new section of one, by the program `application`.
pub fn write_section(to: &mut impl Sink, application: &str) {
    let application = truncated(application);
    let len = 16 + option_len(application) + option_len(&[]);
    write_block(to, SECTION_HEADER, len, |to| {
        write_word(to, BYTE_ORDER);
        // Version 1.0.
        write_word(to, 1);
        to.extend(&SECTION_LENGTH.to_le_bytes());
        put_option(to, option::APPLICATION, application);
        put_option(to, option::END, &[]);
    });
}

/// Describes the next interface of the section.
pub fn write_interface(to: &mut impl Sink, name: &str) {
    let name = truncated(name);
    let len = 8 + option_len(name) + option_len(&[NANOSECONDS]) + option_len(&[]);
    write_block(to, INTERFACE, len, |to| {
        write_word(to, RAW_IP.into());
        // Snap length: no limit.
        write_word(to, 0);
        put_option(to, option::NAME, name);
        put_option(to, option::RESOLUTION, &[NANOSECONDS]);
        put_option(to, option::END, &[]);
    });
}

/// Appends a packet.
pub fn write_packet(to: &mut impl Sink, packet: &Outgoing<'_>) {
    let mut room = [0; MAX_HEADERS];
    let headers = headers(&packet.net, packet.payload, &mut room);
    let comment = truncated(packet.comment);
    let frame_len = headers.len() + packet.payload.len();
    let flags = packet.direction.to_flags().to_le_bytes();
    let len = 20 + frame_len.next_multiple_of(4) + option_len(&flags) + comment_len(comment) + option_len(&[]);
    write_block(to, ENHANCED_PACKET, len, |to| {
        write_word(to, packet.interface);
        write_word(to, (packet.timestamp_ns >> 32) as u32);
        write_word(to, packet.timestamp_ns as u32);
        // Captured and original length.
        write_word(to, frame_len as u32);
        write_word(to, frame_len as u32);
        to.extend(headers);
        to.extend(packet.payload);
        write_pad(to, frame_len);
        put_option(to, option::FLAGS, &flags);
        if !comment.is_empty() {
            put_option(to, option::COMMENT, comment);
        }
        put_option(to, option::END, &[]);
    });
}

/// Writes a block whose body, of `len` bytes (a multiple of 4), is written by `body`.
fn write_block<S: Sink>(to: &mut S, kind: u32, len: usize, body: impl FnOnce(&mut S)) {
    let total = (len + BLOCK_OVERHEAD) as u32;
    write_word(to, kind);
    write_word(to, total);
    body(to);
    write_word(to, total);
}

fn write_word(to: &mut impl Sink, value: u32) {
    to.extend(&value.to_le_bytes());
}

const fn option_len(value: &[u8]) -> usize {
    4 + value.len().next_multiple_of(4)
}

const fn comment_len(comment: &[u8]) -> usize {
    if comment.is_empty() { 0 } else { option_len(comment) }
}

fn put_option(to: &mut impl Sink, code: u16, value: &[u8]) {
    to.extend(&code.to_le_bytes());
    to.extend(&(value.len() as u16).to_le_bytes());
    to.extend(value);
    write_pad(to, value.len());
}

/// Appends the zeros that pad `len` bytes to a multiple of 4.
fn write_pad(to: &mut impl Sink, len: usize) {
    to.extend([0; 3].iter().take(len.wrapping_neg() % 4));
}

/// Returns the bytes of `whole`, cut between two characters to the length of an option.
fn truncated(whole: &str) -> &[u8] {
    let cut = (0..=MAX_OPTION.min(whole.len())).rev().find_map(|end| whole.get(..end));
    cut.unwrap_or_default().as_bytes()
}

/// Size in bytes of an IPv6 and a UDP header.
const MAX_HEADERS: usize = 48;

/// Returns the IP and UDP headers before `payload`.
fn headers<'r>(net: &NetHeader, payload: &[u8], room: &'r mut [u8; MAX_HEADERS]) -> &'r [u8] {
    let udp = if net.is_ipv4() { net.udp_header(payload.len()) } else { net.udp_header_with_checksum(payload) };
    let area = net.to_grh(payload.len());
    let ip = if net.is_ipv4() { area.get(20..).unwrap_or_default() } else { &area };
    let filled = ip.iter().chain(&udp);
    let len = ip.len() + udp.len();
    room.iter_mut().zip(filled).for_each(|(to, byte)| *to = *byte);
    room.get(..len).unwrap_or_default()
}
