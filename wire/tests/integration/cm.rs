//! Messages of the connection manager: a known MAD; every field is at its place, all other bits are
//! reserved.

use proptest::prelude::*;
use roxe_wire::cm::{
    Answered, Apr, AprStatus, CommId, Drep, Dreq, FlowLabel, Guid, Info, IpCmHeader, IpPair, Lap, MAD_LEN, Mad,
    MadError, Message, Mra, MtuCode, Path, PortSpace, PrivateData, Rej, RejReason, Rep, Req, Rtu, ServiceId, SidrRep,
    SidrReq, SidrStatus, TimeCode, TransactionId, Transport, Uint, VendorId, gsi_header,
};
use roxe_wire::{Gid, Packet, PathMtu, Pkey, Psn, Qkey, Qpn, icrc};
use std::net::Ipv4Addr;

/// A REQ written by hand from the tables of the specification, in words of 4 bytes.
#[rustfmt::skip]
const REQ: [u32; 64] = [
    0x01070203, 0, 0x00000007, 0x12345678, 0x00100000, 0, 0x12345678, 0, 0, 0x01061d2f, 0x505400ff, 0xfe001122, 0, 0,
    0x00001101, 0x00000001, 0x000000a0, 0xabcdefa7, 0xffff37f0, 0xffffffff, 0, 0, 0x0000ffff, 0x0a000001, 0, 0,
    0x0000ffff, 0x0a000002, 0x7c3df000, 0x00400088, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0040c350, 0, 0, 0, 0x0a000001,
    0, 0, 0, 0x0a000002, 0x68656c6c, 0x6f000000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

fn bytes(words: [u32; 64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn req() -> Mad {
    let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let addresses = IpPair::new(src.into(), dst.into()).unwrap();
    let header = IpCmHeader { src_port: 50000, addresses };
    let primary = Path {
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid: src.into(),
        remote_gid: dst.into(),
        flow_label: FlowLabel::new(0x7c3df),
        hop_limit: 64,
        local_ack_timeout: TimeCode::new(17),
        ..Path::default()
    };
    let message = Req {
        local_comm_id: CommId(0x1234_5678),
        service_id: ServiceId::new(PortSpace::Tcp, 7471),
        local_ca_guid: Guid(0x5054_00ff_fe00_1122),
        local_qpn: Qpn::new(0x11),
        responder_resources: 1,
        initiator_depth: 1,
        remote_cm_response_timeout: TimeCode::new(20),
        local_cm_response_timeout: TimeCode::new(20),
        starting_psn: Psn::new(0xab_cdef),
        retry_count: Uint::new(7),
        rnr_retry_count: Uint::new(7),
        path_mtu: PathMtu::Mtu1024.into(),
        max_cm_retries: Uint::new(15),
        primary,
        private_data: header.with_program_data(b"hello").expect("short enough"),
        ..Req::default()
    };
    Mad { tid: TransactionId(0x7_1234_5678), modifier: 0, message: message.into() }
}

// clause: CM-MAD, CM-SERVICE-ID
#[test]
fn known_cm_request_roundtrips() {
    assert_eq!(Mad::parse(&bytes(REQ)), Ok(req()));
    assert_eq!(req().to_bytes()[..], bytes(REQ));
    assert_eq!(
        req().to_string(),
        "CM REQ comm=0x12345678 tcp 10.0.0.1:50000 > 10.0.0.2:7471 RC qpn=0x11 psn=11259375 mtu=1024 resources=1 depth=1"
    );
}

#[test]
fn alternate_path_exists_if_its_local_gid_is_set() {
    let has_alternate = |alternate| Req { alternate, ..Req::default() }.has_alternate();
    assert!(!has_alternate(Path::default()));
    assert!(!has_alternate(Path { remote_lid: 1, hop_limit: 64, ..Path::default() }));
    assert!(has_alternate(Path { local_lid: 0xffff, ..Path::default() }));
    assert!(has_alternate(Path { local_gid: Ipv4Addr::LOCALHOST.into(), ..Path::default() }));
}

// clause: CM-MAD, CM-ATTRIBUTES
#[test]
fn mads_that_are_no_cm_message_are_refused() {
    let parse = |at: usize, value: u8| {
        let mut mad = bytes(REQ);
        mad[at] = value;
        Mad::parse(&mad).map(|mad| mad.message.name())
    };
    assert_eq!(parse(0, 2), Err(MadError::BaseVersion));
    assert_eq!(parse(1, 4), Err(MadError::Class));
    assert_eq!(parse(2, 1), Err(MadError::ClassVersion));
    assert_eq!(parse(3, 0x83), Err(MadError::Method));
    assert_eq!(parse(16, 1), Err(MadError::Attribute));
    for at in [4, 5, 6, 7, 18, 19] {
        assert_eq!(parse(at, 0xff), Ok("REQ"), "byte {at} has no meaning");
    }
    let names = (0..=255).filter_map(|attribute| parse(17, attribute).ok());
    let all = ["REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"];
    assert_eq!(names.collect::<Vec<_>>(), all);
    let long = [bytes(REQ), vec![0; 4]].concat();
    for len in (0..=260).filter(|len| *len != MAD_LEN) {
        assert_eq!(Mad::parse(&long[..len]), Err(MadError::Length), "{len} bytes");
    }
}

// clause: CM-GSI, BTH-MIGRATED
#[test]
fn gsi_header_carries_a_mad_to_qp1() {
    let header = gsi_header(Psn::new(5));
    let mut datagram = vec![0; header.padded_len(MAD_LEN) + icrc::LEN];
    let end = datagram.len() - icrc::LEN;
    header
        .emit(MAD_LEN, &mut datagram[..end])
        .expect("emit into a slot of exact size")
        .copy_from_slice(&req().to_bytes());
    assert_eq!(datagram.len() + 8, 288, "bytes of UDP");
    let packet = Packet::parse(&datagram).expect("parse the packet");
    assert!(packet.header.bth.mig_req);
    assert_eq!(Mad::of_packet(&packet), Some(Ok(req())));
    let to = |dest_qpn| {
        let mut other = packet;
        other.header.bth.dest_qpn = dest_qpn;
        Mad::of_packet(&other).is_some()
    };
    assert!(to(Qpn::GSI) && !to(Qpn::new(0)) && !to(Qpn::new(0x11)));
    assert!(packet.to_string().ends_with("qkey=0x80010000 sqpn=0x1 len=256"), "{packet}");
}

// clause: CM-REASON
#[test]
fn codes_keep_their_number_and_have_a_meaning() {
    for code in 0..=u16::MAX {
        assert_eq!(RejReason::from_code(code).code(), code);
    }
    for code in 0..=u8::MAX {
        assert_eq!(AprStatus::from_code(code).code(), code);
        assert_eq!(SidrStatus::from_code(code).code(), code);
    }
    assert_eq!((RejReason::ALL.len(), AprStatus::ALL.len(), SidrStatus::ALL.len()), (34, 14, 6));
    let known = (0..100).filter(|code| !matches!(RejReason::from_code(*code), RejReason::Other(_)));
    assert_eq!(known.collect::<Vec<_>>(), (1..=33).chain([35]).collect::<Vec<_>>());
    assert_eq!(RejReason::ConsumerDefined.code(), 28);
    assert_eq!(RejReason::InvalidServiceId.to_string(), "8 (invalid service id)");
    assert_eq!(RejReason::Other(34).to_string(), "34");
}

// clause: CM-INFO
#[test]
fn info_is_as_long_as_its_length_field() {
    let rej = |info| Rej {
        local_comm_id: CommId::NONE,
        remote_comm_id: CommId(1),
        answered: Answered::Req,
        info,
        reason: RejReason::InvalidGid,
        private_data: PrivateData::EMPTY,
    };
    let gid = Gid::from(Ipv4Addr::new(10, 0, 0, 2));
    let mad = Mad { tid: TransactionId(1), modifier: 0, message: rej(Info::new(&gid.0).expect("16 bytes")).into() };
    let mut bytes = mad.to_bytes();
    assert_eq!(bytes[24 + 9], 16 << 1);
    assert_eq!(bytes[24 + 12..24 + 28], gid.0);
    bytes[24 + 9] = 72 << 1;
    let Ok(Mad { message: Message::Rej(longer), .. }) = Mad::parse(&bytes) else { panic!("a REJ") };
    assert_eq!((longer.info.as_bytes().len(), &longer.info.as_bytes()[..16]), (72, &gid.0[..]));
    bytes[24 + 9] = 73 << 1;
    assert_eq!(Mad::parse(&bytes), Err(MadError::InfoLength));
    assert!(Info::new(&[0; 72]).is_some() && Info::new(&[0; 73]).is_none());
    assert!(PrivateData::<224>::new(&[0; 224]).is_some() && PrivateData::<224>::new(&[0; 225]).is_none());
}

// clause: CM-TIME
#[test]
fn times_are_powers_of_two() {
    assert_eq!(TimeCode::new(0).duration().as_nanos(), 4096);
    assert_eq!(TimeCode::new(20).duration().as_millis(), 4294);
    assert_eq!(TimeCode::new(31).duration().as_secs(), 8796);
    assert_eq!(TimeCode::new(32 + 20).get(), 20);
}

// clause: CM-SERVICE-ID
#[test]
fn service_id_consists_of_port_space_and_port() {
    assert_eq!(ServiceId::new(PortSpace::Tcp, 7471).0, 0x0106_1d2f);
    for space in [PortSpace::Ipoib, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib] {
        assert_eq!(ServiceId::new(space, 65535).port(), Some((space, 65535)));
    }
    assert_eq!(ServiceId(0x1_0106_1d2f).port(), None);
    assert_eq!(ServiceId(0x0107_0000).port(), None);
    assert_eq!(ServiceId::new(PortSpace::Udp, 7174).to_string(), "udp:7174");
    assert_eq!(ServiceId(0x10).to_string(), "0x0000000000000010");
}

// clause: CM-TRANSPORT
#[test]
fn extended_transport_needs_service_type_3() {
    let with = |service: u8, extended: u8| {
        let mut mad = bytes(REQ);
        mad[24 + 43] |= service << 1;
        mad[24 + 51] |= extended;
        let Ok(Mad { message: Message::Req(req), .. }) = Mad::parse(&mad) else { panic!("a REQ") };
        req.transport
    };
    for extended in 0..8 {
        assert_eq!(with(0, extended), Transport::Rc);
        assert_eq!(with(1, extended), Transport::Uc);
        assert_eq!(with(2, extended), Transport::Rd);
    }
    assert_eq!(with(3, 1), Transport::Xrc);
    assert_eq!(with(3, 7), Transport::Extended(7));
}

// clause: MTU-PATH
#[test]
fn undefined_path_mtu_is_kept() {
    let mtus = (0..16).filter_map(|code| MtuCode::new(code).mtu());
    assert_eq!(mtus.collect::<Vec<_>>(), PathMtu::ALL);
    assert_eq!(MtuCode::new(9).get(), 9);
}

/// Positions of a message's fields in the tables of the specification: byte, first bit, number of
/// bits.
type Map = &'static [(usize, usize, usize)];

#[rustfmt::skip]
const MAPS: [(u8, Map); 11] = [
    (
        0x10,
        &[
            (0, 0, 32), (5, 0, 24), (8, 0, 64), (16, 0, 64), (28, 0, 32), (32, 0, 24), (35, 0, 8), (36, 0, 24), (39, 0, 8),
            (40, 0, 24), (43, 0, 5), (43, 5, 2), (43, 7, 1), (44, 0, 24), (47, 0, 5), (47, 5, 3), (48, 0, 16), (50, 0, 4),
            (50, 4, 1), (50, 5, 3), (51, 0, 4), (51, 4, 1), (51, 5, 3), (52, 0, 16), (54, 0, 16), (56, 0, 128),
            (72, 0, 128), (88, 0, 20), (91, 2, 6), (92, 0, 8), (93, 0, 8), (94, 0, 4), (94, 4, 1), (95, 0, 5),
            (96, 0, 16), (98, 0, 16), (100, 0, 128), (116, 0, 128), (132, 0, 20), (135, 2, 6), (136, 0, 8), (137, 0, 8),
            (138, 0, 4), (138, 4, 1), (139, 0, 5), (139, 5, 1), (140, 0, 92 * 8),
        ],
    ),
    (0x11, &[(0, 0, 64), (8, 0, 2), (9, 0, 5), (10, 0, 222 * 8)]),
    (0x12, &[(0, 0, 64), (8, 0, 2), (9, 0, 7), (10, 0, 16), (12, 0, 72 * 8), (84, 0, 148 * 8)]),
    (
        0x13,
        &[
            (0, 0, 64), (8, 0, 32), (12, 0, 32), (16, 0, 32), (20, 0, 32), (24, 0, 8), (25, 0, 8), (26, 0, 8), (27, 0, 4),
            (28, 0, 64), (36, 0, 196 * 8),
        ],
    ),
    (0x14, &[(0, 0, 64), (8, 0, 224 * 8)]),
    (0x15, &[(0, 0, 64), (8, 0, 24), (12, 0, 220 * 8)]),
    (0x16, &[(0, 0, 64), (8, 0, 224 * 8)]),
    (0x17, &[(0, 0, 32), (4, 0, 16), (8, 0, 64), (16, 0, 216 * 8)]),
    (
        0x18,
        &[
            (0, 0, 32), (4, 0, 8), (5, 0, 8), (6, 0, 16), (8, 0, 24), (11, 0, 8), (12, 0, 64), (20, 0, 32), (24, 0, 72 * 8),
            (96, 0, 136 * 8),
        ],
    ),
    (
        0x19,
        &[
            (0, 0, 64), (12, 0, 24), (15, 0, 5), (20, 0, 16), (22, 0, 16), (24, 0, 128), (40, 0, 128), (56, 0, 20),
            (59, 0, 8), (60, 0, 8), (61, 2, 6), (62, 0, 4), (62, 4, 1), (63, 0, 5), (64, 0, 168 * 8),
        ],
    ),
    (0x1a, &[(0, 0, 64), (8, 0, 8), (9, 0, 8), (12, 0, 72 * 8), (84, 0, 148 * 8)]),
];

/// Returns a mask with ones where the MAD has fields.
fn mask(map: Map) -> Vec<u8> {
    let mut mask = vec![0; MAD_LEN];
    for at in (0..4).chain(8..18).chain(20..24) {
        mask[at] = 0xff;
    }
    for (byte, bit, width) in map {
        for bit in byte * 8 + bit..byte * 8 + bit + width {
            mask[24 + bit / 8] |= 0x80 >> (bit % 8);
        }
    }
    mask
}

/// Returns a random MAD with a valid header and valid lengths of additional information.
fn random_mad() -> impl Strategy<Value = (Map, Vec<u8>)> {
    (0..MAPS.len(), prop::collection::vec(any::<u8>(), MAD_LEN), 0..=72_u8).prop_map(|(index, mut mad, info)| {
        let (attribute, map) = MAPS[index];
        (mad[0], mad[1], mad[2], mad[3], mad[16], mad[17]) = (1, 7, 2, 3, 0, attribute);
        match attribute {
            0x12 => mad[24 + 9] = info << 1 | mad[24 + 9] & 1,
            0x18 => mad[24 + 5] = info,
            0x1a => mad[24 + 8] = info,
            _ => (),
        }
        (map, mad)
    })
}

/// The message area of a MAD, read bit by bit by the tables of the specification.
struct Area<'a>(&'a [u8]);

impl Area<'_> {
    fn bits(&self, byte: usize, bit: usize, width: usize) -> u64 {
        let bits = byte * 8 + bit..byte * 8 + bit + width;
        bits.fold(0, |number, bit| number << 1 | u64::from(self.0[bit / 8] >> (7 - bit % 8) & 1))
    }

    fn is(&self, byte: usize, bit: usize) -> bool {
        self.bits(byte, bit, 1) != 0
    }

    fn gid(&self, byte: usize) -> Gid {
        Gid(self.0[byte..byte + 16].try_into().expect("16 bytes"))
    }

    fn comm_id(&self, byte: usize) -> CommId {
        CommId(self.bits(byte, 0, 32) as u32)
    }

    fn qpn(&self, byte: usize) -> Qpn {
        Qpn::new(self.bits(byte, 0, 24) as u32)
    }

    fn time(&self, byte: usize) -> TimeCode {
        TimeCode::new(self.bits(byte, 0, 5) as u8)
    }

    fn service(&self, byte: usize) -> ServiceId {
        ServiceId(self.bits(byte, 0, 64))
    }

    fn private<const N: usize>(&self, byte: usize) -> PrivateData<N> {
        PrivateData::new(&self.0[byte..byte + N]).expect("as long")
    }

    /// Returns true if `info` holds the bytes at `byte`. They are compared, because `Info` also
    /// keeps the ignored bytes after its length.
    fn has_info(&self, info: &Info, len: u64, byte: usize) -> bool {
        info.as_bytes() == &self.0[byte..byte + len as usize]
    }

    fn path(&self, byte: usize) -> Path {
        Path {
            local_lid: self.bits(byte, 0, 16) as u16,
            remote_lid: self.bits(byte + 2, 0, 16) as u16,
            local_gid: self.gid(byte + 4),
            remote_gid: self.gid(byte + 20),
            flow_label: FlowLabel::new(self.bits(byte + 36, 0, 20) as u32),
            packet_rate: Uint::new(self.bits(byte + 39, 2, 6) as u8),
            traffic_class: self.bits(byte + 40, 0, 8) as u8,
            hop_limit: self.bits(byte + 41, 0, 8) as u8,
            sl: Uint::new(self.bits(byte + 42, 0, 4) as u8),
            subnet_local: self.is(byte + 42, 4),
            local_ack_timeout: self.time(byte + 43),
        }
    }

    fn req(&self) -> Req {
        Req {
            local_comm_id: self.comm_id(0),
            vendor_id: VendorId::new(self.bits(5, 0, 24) as u32),
            service_id: self.service(8),
            local_ca_guid: Guid(self.bits(16, 0, 64)),
            local_qkey: Qkey(self.bits(28, 0, 32) as u32),
            local_qpn: self.qpn(32),
            responder_resources: self.bits(35, 0, 8) as u8,
            local_eecn: self.qpn(36),
            initiator_depth: self.bits(39, 0, 8) as u8,
            remote_eecn: self.qpn(40),
            remote_cm_response_timeout: self.time(43),
            transport: self.transport(),
            flow_control: self.is(43, 7),
            starting_psn: Psn::new(self.bits(44, 0, 24) as u32),
            local_cm_response_timeout: self.time(47),
            retry_count: Uint::new(self.bits(47, 5, 3) as u8),
            pkey: Pkey(self.bits(48, 0, 16) as u16),
            path_mtu: MtuCode::new(self.bits(50, 0, 4) as u8),
            rdc_exists: self.is(50, 4),
            rnr_retry_count: Uint::new(self.bits(50, 5, 3) as u8),
            max_cm_retries: Uint::new(self.bits(51, 0, 4) as u8),
            srq: self.is(51, 4),
            primary: self.path(52),
            alternate: self.path(96),
            sap_supported: self.is(139, 5),
            private_data: self.private(140),
        }
    }

    fn transport(&self) -> Transport {
        match (self.bits(43, 5, 2), self.bits(51, 5, 3) as u8) {
            (0, _) => Transport::Rc,
            (1, _) => Transport::Uc,
            (2, _) => Transport::Rd,
            (_, 1) => Transport::Xrc,
            (_, extended) => Transport::Extended(extended),
        }
    }

    fn rep(&self) -> Rep {
        Rep {
            local_comm_id: self.comm_id(0),
            remote_comm_id: self.comm_id(4),
            local_qkey: Qkey(self.bits(8, 0, 32) as u32),
            local_qpn: self.qpn(12),
            vendor_id: VendorId::new(
                (self.bits(15, 0, 8) << 16 | self.bits(19, 0, 8) << 8 | self.bits(23, 0, 8)) as u32,
            ),
            local_eecn: self.qpn(16),
            starting_psn: Psn::new(self.bits(20, 0, 24) as u32),
            responder_resources: self.bits(24, 0, 8) as u8,
            initiator_depth: self.bits(25, 0, 8) as u8,
            target_ack_delay: self.time(26),
            failover: Uint::new(self.bits(26, 5, 2) as u8),
            flow_control: self.is(26, 7),
            rnr_retry_count: Uint::new(self.bits(27, 0, 3) as u8),
            srq: self.is(27, 3),
            local_ca_guid: Guid(self.bits(28, 0, 64)),
            private_data: self.private(36),
        }
    }

    fn lap(&self) -> Lap {
        Lap {
            local_comm_id: self.comm_id(0),
            remote_comm_id: self.comm_id(4),
            remote_qpn: self.qpn(12),
            remote_cm_response_timeout: self.time(15),
            local_lid: self.bits(20, 0, 16) as u16,
            remote_lid: self.bits(22, 0, 16) as u16,
            local_gid: self.gid(24),
            remote_gid: self.gid(40),
            flow_label: FlowLabel::new(self.bits(56, 0, 20) as u32),
            traffic_class: self.bits(59, 0, 8) as u8,
            hop_limit: self.bits(60, 0, 8) as u8,
            packet_rate: Uint::new(self.bits(61, 2, 6) as u8),
            sl: Uint::new(self.bits(62, 0, 4) as u8),
            subnet_local: self.is(62, 4),
            local_ack_timeout: self.time(63),
            private_data: self.private(64),
        }
    }

    /// Reads a message of the type of `read` by the tables.
    fn message(&self, read: &Message) -> Message {
        let (local_comm_id, remote_comm_id, request_id) = (self.comm_id(0), self.comm_id(4), self.comm_id(0));
        let answered = Answered::from_code(self.bits(8, 0, 2) as u8);
        match read {
            Message::Req(_) => self.req().into(),
            Message::Rep(_) => self.rep().into(),
            Message::Lap(_) => self.lap().into(),
            Message::Mra(_) => {
                let (service_timeout, private_data) = (self.time(9), self.private(10));
                Mra { local_comm_id, remote_comm_id, answered, service_timeout, private_data }.into()
            }
            Message::Rej(Rej { info, .. }) => {
                assert!(self.has_info(info, self.bits(9, 0, 7), 12));
                let (reason, private_data) = (RejReason::from_code(self.bits(10, 0, 16) as u16), self.private(84));
                Rej { local_comm_id, remote_comm_id, answered, info: *info, reason, private_data }.into()
            }
            Message::Rtu(_) => Rtu { local_comm_id, remote_comm_id, private_data: self.private(8) }.into(),
            Message::Dreq(_) => {
                let (remote_qpn, private_data) = (self.qpn(8), self.private(12));
                Dreq { local_comm_id, remote_comm_id, remote_qpn, private_data }.into()
            }
            Message::Drep(_) => Drep { local_comm_id, remote_comm_id, private_data: self.private(8) }.into(),
            Message::Apr(Apr { info, .. }) => {
                assert!(self.has_info(info, self.bits(8, 0, 8), 12));
                let (status, private_data) = (AprStatus::from_code(self.bits(9, 0, 8) as u8), self.private(84));
                Apr { local_comm_id, remote_comm_id, info: *info, status, private_data }.into()
            }
            Message::SidrReq(_) => {
                let pkey = Pkey(self.bits(4, 0, 16) as u16);
                SidrReq { request_id, pkey, service_id: self.service(8), private_data: self.private(16) }.into()
            }
            Message::SidrRep(SidrRep { info, .. }) => {
                assert!(self.has_info(info, self.bits(5, 0, 8), 24));
                SidrRep {
                    request_id,
                    status: SidrStatus::from_code(self.bits(4, 0, 8) as u8),
                    info: *info,
                    vendor_id: VendorId::new((self.bits(6, 0, 16) << 8 | self.bits(11, 0, 8)) as u32),
                    qpn: self.qpn(8),
                    service_id: self.service(12),
                    qkey: Qkey(self.bits(20, 0, 32) as u32),
                    private_data: self.private(96),
                }
                .into()
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    // clause: CM-RESERVED
    #[test]
    fn parsed_mads_are_written_back_except_reserved_bits((map, mad) in random_mad()) {
        let parsed = Mad::parse(&mad).expect("parse the MAD");
        let mut expected: Vec<_> = mad.iter().zip(mask(map)).map(|(byte, mask)| byte & mask).collect();
        // The extended transport type is reserved unless the transport service type is 3.
        if mad[17] == 0x10 && mad[24 + 43] & 6 != 6 {
            expected[24 + 51] &= 0xf8;
        }
        prop_assert_eq!(&parsed.to_bytes()[..], &expected[..]);
        prop_assert_eq!(Mad::parse(&expected), Ok(parsed));
    }

    // clause: CM-FIELDS, CM-TRANSPORT
    #[test]
    fn cm_fields_are_at_their_specified_bits((_, mad) in random_mad()) {
        let parsed = Mad::parse(&mad).expect("parse the MAD");
        prop_assert_eq!(parsed.tid.0.to_be_bytes(), &mad[8..16]);
        prop_assert_eq!(parsed.modifier.to_be_bytes(), &mad[20..24]);
        prop_assert_eq!(&Area(&mad[24..]).message(&parsed.message), &parsed.message);
        if let Message::Lap(lap) = parsed.message {
            let path = lap.path();
            prop_assert_eq!((path.local_gid, path.remote_gid), (lap.local_gid, lap.remote_gid));
            prop_assert_eq!((path.hop_limit, path.traffic_class), (lap.hop_limit, lap.traffic_class));
            prop_assert_eq!((path.local_lid, path.remote_lid), (lap.local_lid, lap.remote_lid));
        }
    }

    #[test]
    fn each_bit_of_a_field_changes_the_message((map, mad) in random_mad(), bit in 24 * 8..MAD_LEN * 8) {
        let mut other = mad.clone();
        other[bit / 8] ^= 0x80 >> (bit % 8);
        let is_field = mask(map)[bit / 8] & 0x80 >> (bit % 8) != 0;
        let is_reserved_extension = mad[17] == 0x10 && bit / 8 == 24 + 51 && bit % 8 > 4 && mad[24 + 43] & 6 != 6;
        let changed = Mad::parse(&other) != Mad::parse(&mad);
        prop_assert_eq!(changed, is_field && !is_reserved_extension);
    }

    #[test]
    fn mad_parser_does_not_panic_on_any_bytes(mad in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Mad::parse(&mad);
        let _ = IpCmHeader::parse(&mad);
    }

    #[test]
    fn every_message_prints_as_one_line((_, mad) in random_mad()) {
        let line = Mad::parse(&mad).expect("parse the MAD").to_string();
        prop_assert!(line.starts_with("CM ") && !line.contains('\n'), "{line}");
    }
}

#[test]
fn oversized_numbers_do_not_change_other_fields() {
    let mut mad = req();
    let Message::Req(message) = &mut mad.message else { panic!("a REQ") };
    message.transport = Transport::Extended(0xff);
    let Ok(Mad { message: Message::Req(mut read), .. }) = Mad::parse(&mad.to_bytes()) else { panic!("a REQ") };
    assert_eq!(read.transport, Transport::Extended(7));
    read.transport = Transport::Rc;
    assert_eq!(Message::Req(read), req().message);
    assert_eq!(Uint::<3>::new(0xff), Uint::MAX);
    assert_eq!((Uint::<3>::MAX.get(), Uint::<8>::MAX.get()), (7, 255));
}
