//! Writes RoCEv2 packets as a pcapng file that any tool for captures reads: little endian,
//! nanoseconds, raw IP.
//!
//! Every function appends one block, whole, to anything that takes bytes. A file is one section,
//! then its interfaces, then packets; an interface may also come later, before its first packet.
//! The IP and UDP headers around a packet are built from its [`NetHeader`]: with IPv4 there is a
//! valid header checksum and no UDP checksum, which RoCEv2 allows; with IPv6 there is a valid UDP
//! checksum, because tools complain about its absence. Touches `net`.

use super::format::{Direction, ENHANCED_PACKET, INTERFACE, RAW_IP, SECTION_HEADER, option};
use crate::net::NetHeader;

/// What takes the bytes of a file, for example a `Vec<u8>`.
pub trait Sink: for<'a> Extend<&'a u8> {}

impl<T: for<'a> Extend<&'a u8>> Sink for T {}

/// One packet on its way into a file.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Number of the interface in the section, from 0.
    pub interface: u32,
    /// When, in nanoseconds since 1970.
    pub timestamp_ns: u64,
    /// Which way it went.
    pub direction: Direction,
    /// What the IP and UDP headers say. The ICRC covers `ident`.
    pub net: NetHeader,
    /// UDP payload: from the BTH to the ICRC.
    pub payload: &'a [u8],
    /// A remark for the reader; none if empty. What is beyond [`MAX_OPTION`] bytes is left out.
    pub comment: &'a str,
}

/// The most bytes a text in a file has here: what 16 bits can say, less room for its padding.
pub const MAX_OPTION: usize = 0xfffc;

/// Length unknown: a reader finds the end of the section at the end of the file.
const SECTION_LENGTH: u64 = u64::MAX;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// 10^-9 seconds.
const NANOSECONDS: u8 = 9;
/// Type and two lengths.
const AROUND: usize = 12;

/// Begins a file or a new section of one, by the program `application`.
pub fn write_section(to: &mut impl Sink, application: &str) {
    let application = text(application);
    let len = 16 + option_len(application) + option_len(&[]);
    block(to, SECTION_HEADER, len, |to| {
        word(to, BYTE_ORDER);
        // Version 1.0.
        word(to, 1);
        to.extend(&SECTION_LENGTH.to_le_bytes());
        put_option(to, option::APPLICATION, application);
        put_option(to, option::END, &[]);
    });
}

/// Describes the next interface of the section.
pub fn write_interface(to: &mut impl Sink, name: &str) {
    let name = text(name);
    let len = 8 + option_len(name) + option_len(&[NANOSECONDS]) + option_len(&[]);
    block(to, INTERFACE, len, |to| {
        word(to, RAW_IP.into());
        // No limit to the length of packets.
        word(to, 0);
        put_option(to, option::NAME, name);
        put_option(to, option::RESOLUTION, &[NANOSECONDS]);
        put_option(to, option::END, &[]);
    });
}

/// Appends a packet.
pub fn write_packet(to: &mut impl Sink, packet: &Outgoing<'_>) {
    let mut room = [0; MAX_HEADERS];
    let headers = headers(&packet.net, packet.payload, &mut room);
    let comment = text(packet.comment);
    let frame_len = headers.len() + packet.payload.len();
    let flags = packet.direction.to_flags().to_le_bytes();
    let len = 20 + frame_len.next_multiple_of(4) + option_len(&flags) + comment_len(comment) + option_len(&[]);
    block(to, ENHANCED_PACKET, len, |to| {
        word(to, packet.interface);
        word(to, (packet.timestamp_ns >> 32) as u32);
        word(to, packet.timestamp_ns as u32);
        // Captured, and on the wire.
        word(to, frame_len as u32);
        word(to, frame_len as u32);
        to.extend(headers);
        to.extend(packet.payload);
        pad(to, frame_len);
        put_option(to, option::FLAGS, &flags);
        if !comment.is_empty() {
            put_option(to, option::COMMENT, comment);
        }
        put_option(to, option::END, &[]);
    });
}

/// A block of `len` bytes, a multiple of 4, which `body` writes.
fn block<S: Sink>(to: &mut S, kind: u32, len: usize, body: impl FnOnce(&mut S)) {
    let total = (len + AROUND) as u32;
    word(to, kind);
    word(to, total);
    body(to);
    word(to, total);
}

fn word(to: &mut impl Sink, value: u32) {
    to.extend(&value.to_le_bytes());
}

/// What `put_option` will write.
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
    pad(to, value.len());
}

/// Zeros up to a multiple of 4 behind `len` bytes.
fn pad(to: &mut impl Sink, len: usize) {
    to.extend([0; 3].iter().take(len.wrapping_neg() % 4));
}

/// As much of a text as an option holds, cut between two characters.
fn text(whole: &str) -> &[u8] {
    let cut = (0..=MAX_OPTION.min(whole.len())).rev().find_map(|end| whole.get(..end));
    cut.unwrap_or_default().as_bytes()
}

/// IPv6 and UDP.
const MAX_HEADERS: usize = 48;

/// The IP and UDP headers in front of `payload`.
fn headers<'r>(net: &NetHeader, payload: &[u8], room: &'r mut [u8; MAX_HEADERS]) -> &'r [u8] {
    let udp = if net.is_ipv4() { net.udp_header(payload.len()) } else { net.udp_header_with_checksum(payload) };
    let area = net.to_grh(payload.len());
    let ip = if net.is_ipv4() { area.get(20..).unwrap_or_default() } else { &area };
    let filled = ip.iter().chain(&udp);
    let len = ip.len() + udp.len();
    room.iter_mut().zip(filled).for_each(|(to, byte)| *to = *byte);
    room.get(..len).unwrap_or_default()
}
