//! Capture files of every format, written by hand: the reader finds the frames and rejects
//! malformed files. Written files are read back.

use proptest::prelude::*;
use roxe_wire::capture::{
    CaptureError, Direction, Frame, LinkType, MAX_INTERFACES, MAX_OPTION, Outgoing, frames, ip_packet, write_interface,
    write_packet, write_section,
};
use roxe_wire::{Gid, NetHeader, icrc};
use std::net::Ipv4Addr;

/// A capture file under construction, in one byte order.
#[derive(Clone, Default)]
struct File {
    big_endian: bool,
    bytes: Vec<u8>,
}

impl File {
    fn u16(mut self, value: u16) -> Self {
        self.bytes.extend(if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() });
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.bytes.extend(if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() });
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn classic(big_endian: bool, magic: u32, link: u32) -> Self {
        Self { big_endian, bytes: Vec::new() }.u32(magic).u16(2).u16(4).u32(0).u32(0).u32(65535).u32(link)
    }

    fn record(self, seconds: u32, fraction: u32, data: &[u8]) -> Self {
        self.u32(seconds).u32(fraction).u32(data.len() as u32).u32(data.len() as u32).raw(data)
    }

    /// Returns a pcapng block with the body that `body` writes.
    fn block(self, kind: u32, body: impl FnOnce(Self) -> Self) -> Self {
        let mut body = body(Self { big_endian: self.big_endian, bytes: Vec::new() }).bytes;
        body.resize(body.len().next_multiple_of(4), 0);
        let total = body.len() as u32 + 12;
        self.u32(kind).u32(total).raw(&body).u32(total)
    }

    fn section(self, big_endian: bool) -> Self {
        Self { big_endian, ..self }
            .block(0x0a0d_0d0a, |body| body.u32(0x1a2b_3c4d).u16(1).u16(0).u32(u32::MAX).u32(u32::MAX))
    }

    fn interface(self, link: u16, snap_len: u32, resolution: Option<u8>) -> Self {
        self.block(1, |body| {
            let body = body.u16(link).u16(0).u32(snap_len).u16(2).u16(3).raw(b"lo\0\0");
            let body = match resolution {
                Some(resolution) => body.u16(9).u16(1).raw(&[resolution, 0, 0, 0]),
                None => body,
            };
            body.u16(0).u16(0)
        })
    }

    fn packet(self, interface: u32, time: u64, data: &[u8]) -> Self {
        self.block(6, |body| {
            let body = body.u32(interface).u32((time >> 32) as u32).u32(time as u32);
            body.u32(data.len() as u32).u32(data.len() as u32).raw(data)
        })
    }

    fn frames(&self) -> Vec<Result<Frame<'_>, CaptureError>> {
        frames(&self.bytes).expect("parse the capture file").collect()
    }
}

fn frame(timestamp_ns: u64, link: LinkType, data: &[u8]) -> Result<Frame<'_>, CaptureError> {
    Ok(Frame { timestamp_ns, data, length: data.len() as u64, ..Frame::new(link) })
}

fn on_interface(interface: u32, frame: Result<Frame<'_>, CaptureError>) -> Result<Frame<'_>, CaptureError> {
    frame.map(|frame| Frame { interface, ..frame })
}

#[test]
fn classic_files_of_both_byte_orders_and_units_are_read() {
    for (big_endian, magic, unit) in
        [(false, 0xa1b2_c3d4, 1000), (true, 0xa1b2_c3d4, 1000), (false, 0xa1b2_3c4d, 1), (true, 0xa1b2_3c4d, 1)]
    {
        let file = File::classic(big_endian, magic, 101).record(7, 5, b"one").record(8, 0, b"");
        let expected =
            [frame(7_000_000_000 + 5 * unit, LinkType::RawIp, b"one"), frame(8_000_000_000, LinkType::RawIp, b"")];
        assert_eq!(file.frames(), expected);
    }
}

#[test]
fn pcapng_files_of_both_byte_orders_and_all_clocks_are_read() {
    for big_endian in [false, true] {
        let file = File::default()
            .section(big_endian)
            .interface(1, 0, None)
            .interface(276, 0, Some(9))
            .interface(101, 0, Some(0x8a))
            .block(5, |statistics| statistics.u32(0))
            .packet(1, 1_700_000_000_000_000_001, b"cooked")
            .packet(0, 1_700_000_000_000_001, b"ether")
            .packet(2, 1536, b"raw");
        let expected = [
            on_interface(1, frame(1_700_000_000_000_000_001, LinkType::LinuxCooked2, b"cooked")),
            on_interface(0, frame(1_700_000_000_000_001_000, LinkType::Ethernet, b"ether")),
            on_interface(2, frame(1_500_000_000, LinkType::RawIp, b"raw")),
        ];
        assert_eq!(file.frames(), expected);
    }
}

#[test]
fn sections_have_interfaces_of_their_own() {
    let file = File::default()
        .section(false)
        .interface(1, 0, None)
        .packet(0, 1, b"first")
        .section(true)
        .interface(0, 0, None)
        .packet(0, 2, b"second")
        .packet(1, 3, b"of no interface");
    let expected = [
        frame(1000, LinkType::Ethernet, b"first"),
        frame(2000, LinkType::BsdLoopback, b"second"),
        Err(CaptureError::BadBlock),
    ];
    assert_eq!(file.frames(), expected);
}

#[test]
fn interfaces_are_limited_per_section() {
    let max = MAX_INTERFACES as u32;
    let link = |id: u32| if id.is_multiple_of(2) { 1 } else { 276 };
    let section = File::default().section(false);
    let described = (0..=max).fold(section, |file, id| file.interface(link(id), 0, Some(9)));
    let file = (0..=max).fold(described, |file, id| file.packet(id, u64::from(id), b"data"));
    let found = file.frames();
    let (last, known) = found.split_last().unwrap();
    assert_eq!(*last, Err(CaptureError::TooManyInterfaces));
    for (id, found) in (0..).zip(known) {
        assert_eq!(*found, on_interface(id, frame(u64::from(id), LinkType::from_number(link(id)), b"data")));
    }
    let early = File::default().section(false).packet(0, 1, b"data").interface(1, 0, None);
    assert_eq!(early.frames(), [Err(CaptureError::BadBlock)], "an interface is described before its packets");
}

#[test]
fn simple_packets_are_cut_at_the_snapshot_length() {
    let file = File::default().section(false).interface(1, 4, None).block(3, |body| body.u32(9).raw(b"nine"));
    let nine = frame(0, LinkType::Ethernet, b"nine").map(|frame| Frame { length: 9, ..frame });
    assert_eq!(file.frames(), [nine]);
    assert!(nine.is_ok_and(|frame| frame.is_truncated()));
}

#[test]
fn broken_files_are_refused_where_they_break() {
    assert_eq!(frames(b"").err(), Some(CaptureError::UnknownFormat));
    assert_eq!(frames(b"GIF89a").err(), Some(CaptureError::UnknownFormat));
    let mut cut = File::classic(false, 0xa1b2_c3d4, 1).record(0, 0, b"whole").record(0, 0, b"cut");
    cut.bytes.pop();
    assert_eq!(cut.frames(), [frame(0, LinkType::Ethernet, b"whole"), Err(CaptureError::Truncated)]);

    let good = File::default().section(false).interface(1, 0, None);
    for (broken, error) in [
        (good.clone().u32(6), CaptureError::Truncated),
        (good.clone().u32(6).u32(11).u32(11), CaptureError::BadBlock),
        (good.clone().u32(6).u32(13).raw(&[0; 8]), CaptureError::BadBlock),
        (good.clone().u32(6).u32(u32::MAX - 3), CaptureError::Truncated),
        (good.clone().u32(9).u32(12).u32(16), CaptureError::BadBlock),
        (good.block(6, |body| body.u32(0).u32(0).u32(0).u32(9).u32(9)), CaptureError::Truncated),
    ] {
        assert_eq!(broken.frames(), [Err(error)]);
    }
}

#[test]
fn ip_packet_is_found_after_any_link_header() {
    let with = |header: &[u8]| [header, b"IP"].concat();
    let ethernet = |rest: &[u8]| with(&[&[0; 12], rest].concat());
    let ip = Some(&b"IP"[..]);
    assert_eq!(ip_packet(LinkType::RawIp, b"IP"), ip);
    assert_eq!(ip_packet(LinkType::BsdLoopback, &with(&[2, 0, 0, 0])), ip);
    assert_eq!(ip_packet(LinkType::Ethernet, &ethernet(&[8, 0])), ip);
    assert_eq!(ip_packet(LinkType::Ethernet, &ethernet(&[0x86, 0xdd])), ip);
    assert_eq!(ip_packet(LinkType::Ethernet, &ethernet(&[0x81, 0, 0, 5, 8, 0])), ip);
    assert_eq!(ip_packet(LinkType::Ethernet, &ethernet(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 5, 8, 0])), ip);
    assert_eq!(ip_packet(LinkType::Ethernet, &ethernet(&[8, 6])), None);
    assert_eq!(ip_packet(LinkType::Ethernet, &ethernet(&[0x81, 0, 0, 5])), None);
    assert_eq!(ip_packet(LinkType::LinuxCooked, &with(&[&[0; 14][..], &[8, 0]].concat())), ip);
    assert_eq!(ip_packet(LinkType::LinuxCooked2, &with(&[&[8, 0][..], &[0; 18]].concat())), ip);
    assert_eq!(ip_packet(LinkType::LinuxCooked2, &[8, 0, 0]), None);
    assert_eq!(ip_packet(LinkType::Other(147), b"IP"), None);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mangled_capture_files_end_without_panic(classic: bool, at: prop::sample::Index, byte: u8, keep: prop::sample::Index) {
        let file = if classic {
            File::classic(false, 0xa1b2_c3d4, 1).record(1, 2, b"data")
        } else {
            File::default().section(false).interface(1, 0, Some(9)).packet(0, 3, b"data").packet(0, 4, b"more")
        };
        let mut bytes = file.bytes;
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes.truncate(keep.index(bytes.len()) + 1);
        let count = frames(&bytes).map_or(0, |frames| {
            frames.filter(|frame| frame.is_ok_and(|frame| ip_packet(frame.link, frame.data).is_some())).count()
        });
        prop_assert!(count <= 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn written_captures_read_back_equal(
        ipv6: bool,
        inbound: bool,
        timestamp_ns: u64,
        (src, dst, src_port) in any::<([u8; 4], [u8; 4], u16)>(),
        (traffic_class, hop_limit, ident) in any::<(u8, u8, u16)>(),
        mut payload in prop::collection::vec(any::<u8>(), 4..4200),
        comment in ".{0,40}",
    ) {
        let gid = |v4: [u8; 4]| if ipv6 { Gid([[0xfd; 12].as_slice(), &v4].concat().try_into().unwrap()) } else { Ipv4Addr::from(v4).into() };
        let ident = if ipv6 { 0 } else { ident };
        let net =
            NetHeader { src: gid(src), dst: gid(dst), src_port, traffic_class, hop_limit, ident, flow_label: 0 };
        icrc::seal(&net, &mut payload);
        let direction = if inbound { Direction::Inbound } else { Direction::Outbound };
        let packet = Outgoing { interface: 1, timestamp_ns, direction, net, payload: &payload, comment: &comment };
        let mut file = Vec::new();
        write_section(&mut file, "a test");
        write_interface(&mut file, "roxe0");
        write_interface(&mut file, "another");
        write_packet(&mut file, &packet);
        write_packet(&mut file, &packet);
        let read: Vec<_> = frames(&file).unwrap().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(read.len(), 2);
        prop_assert_eq!(read[0], read[1]);
        prop_assert_eq!(read[0].timestamp_ns, timestamp_ns);
        prop_assert_eq!(read[0].direction, Some(direction));
        prop_assert_eq!(read[0].comment, &comment);
        let ip = ip_packet(read[0].link, read[0].data).unwrap();
        prop_assert_eq!(NetHeader::parse_ip(ip), Ok((net, &payload[..])));
        prop_assert!(icrc::verify(&net, &payload));
    }
}

#[test]
fn long_comment_is_cut_between_characters() {
    let long = "é".repeat(40_000);
    let mut file = Vec::new();
    write_section(&mut file, &long);
    write_interface(&mut file, &long);
    let packet = Outgoing {
        interface: 0,
        timestamp_ns: 0,
        direction: Direction::Outbound,
        net: NetHeader::default(),
        payload: b"odd",
        comment: &long,
    };
    write_packet(&mut file, &packet);
    let read: Vec<_> = frames(&file).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].comment.len(), MAX_OPTION);
    assert!(long.starts_with(read[0].comment));
}

#[test]
fn broken_options_leave_the_frame() {
    let with_options = |options: &[u8]| {
        File::default()
            .section(false)
            .interface(101, 0, Some(9))
            .block(6, |body| body.u32(0).u32(0).u32(5).u32(4).u32(4).raw(b"data").raw(options))
    };
    for options in [
        &[][..],
        &[1, 0, 9, 0, b'x', 0, 0, 0],
        &[1, 0, 0xff, 0xff],
        &[2, 0, 2, 0, 1, 0, 0, 0],
        &[1, 0, 1, 0, 0xff, 0, 0, 0],
    ] {
        assert_eq!(with_options(options).frames(), [frame(5, LinkType::RawIp, b"data")], "{options:?}");
    }
}
