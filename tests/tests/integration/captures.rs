//! Checks that roxe parses every RoCEv2 packet of another implementation in `captures/`, computes
//! the same ICRC, and emits the same bytes.

use roxe_wire::capture::{Frame, frames, ip_packet};
use roxe_wire::cm::{CommId, Guid, IpCmHeader, Mad, Message, PortSpace, ServiceId, gsi_header};
use roxe_wire::{Header, Kind, NetHeader, Packet, ParseError, PathMtu, icrc};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Packets in all captures, as recorded in captures/README.md.
const ROCE_PACKETS: usize = 2279;

fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures");
    let entries = fs::read_dir(&folder).expect("list the folder of captures");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("read an entry of the folder").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "pcap"));
    files.sort();
    files
}

/// Calls `check` with the place, IP packet, parsed headers and UDP payload of every RoCEv2 packet.
/// Returns the number of packets.
fn for_each_roce_packet(mut check: impl FnMut(&str, &[u8], &NetHeader, &[u8])) -> usize {
    let mut seen = 0;
    for path in captures() {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let file = fs::read(&path).expect("read the capture");
        for (index, frame) in frames(&file).expect("parse the capture").enumerate() {
            let Frame { link, data, .. } = frame.expect("parse the frame");
            let Some(ip) = ip_packet(link, data) else { continue };
            match NetHeader::parse_ip(ip) {
                Ok((net, payload)) => check(&format!("{name} frame {}", index + 1), ip, &net, payload),
                // IGMP and ICMPv6 packets of the recording machines.
                Err(ParseError::NotIp | ParseError::NotRoce) => continue,
                Err(error) => panic!("{name} frame {}: {error}", index + 1),
            }
            seen += 1;
        }
    }
    seen
}

fn emit(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xee; header.padded_len(payload.len())];
    header.emit(payload.len(), &mut bytes).expect("emit the headers").copy_from_slice(payload);
    bytes
}

// clause: HEADER-ORDER, ICRC-SUM
#[test]
fn captured_packets_roundtrip_byte_for_byte() {
    let seen = for_each_roce_packet(|at, _, net, datagram| {
        let packet = Packet::parse(datagram).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert!(icrc::verify(net, datagram), "{at}: ICRC");
        let mut ours = emit(&packet.header, packet.payload);
        ours.extend_from_slice(&[0; icrc::LEN]);
        icrc::seal(net, &mut ours);
        assert_eq!(ours, datagram, "{at}: {packet}");
    });
    assert_eq!(seen, ROCE_PACKETS);
}

// clause: IP-IDENT
#[test]
fn captured_ip_identification_is_recovered_from_icrc() {
    let seen = for_each_roce_packet(|at, _, net, datagram| {
        let unknown = NetHeader { ident: 0, ..*net };
        for likely in [0, net.ident, net.ident.wrapping_sub(1)] {
            assert_eq!(icrc::solve_ident(&unknown, datagram, likely), Some(net.ident), "{at}");
        }
    });
    assert_eq!(seen, ROCE_PACKETS);
}

// clause: UD-GRH
#[test]
fn captured_datagram_grh_equals_its_ip_header() {
    let mut datagrams = 0;
    for_each_roce_packet(|at, ip, net, datagram| {
        let packet = Packet::parse(datagram).unwrap_or_else(|error| panic!("{at}: {error}"));
        if matches!(packet.header.kind, Kind::Ud { .. }) {
            datagrams += 1;
            assert_eq!(net.to_grh(datagram.len())[20..], ip[..20], "{at}");
        }
    });
    assert!(datagrams > 0);
}

/// Calls `check` with the place, addresses, packet and content of every connection manager message.
fn for_each_mad(mut check: impl FnMut(&str, &NetHeader, &Packet<'_>, &Mad)) {
    for_each_roce_packet(|at, _, net, datagram| {
        let packet = Packet::parse(datagram).unwrap_or_else(|error| panic!("{at}: {error}"));
        if let Some(mad) = Mad::of_packet(&packet) {
            check(at, net, &packet, &mad.unwrap_or_else(|error| panic!("{at}: {error}")));
        }
    });
}

// clause: CM-MAD, CM-ATTRIBUTES, CM-RESERVED
#[test]
fn captured_connection_messages_roundtrip_byte_for_byte() {
    let mut seen = BTreeMap::new();
    for_each_mad(|at, _, packet, mad| {
        *seen.entry(mad.message.name()).or_insert(0) += 1;
        assert_eq!(mad.to_bytes(), packet.payload, "{at}: {mad}");
    });
    let expected = [("REQ", 8), ("REP", 8), ("RTU", 8), ("DREQ", 9), ("DREP", 9), ("SIDR_REQ", 2), ("SIDR_REP", 2)];
    assert_eq!(seen, BTreeMap::from(expected));
}

/// The expected numbers are those that Wireshark shows for the first connection of `rping`.
// clause: CM-FIELDS
#[test]
fn captured_connection_matches_wireshark() {
    let mut messages = Vec::new();
    for_each_mad(|at, _, _, mad| {
        if at.starts_with("rping.pcap ") {
            assert_eq!((mad.tid.0 & 0xffff_ffff, mad.modifier), (0x50cf_2953, 0), "{at}");
            messages.push(mad.message.clone());
        }
    });
    let [Message::Req(req), Message::Rep(rep), Message::Rtu(rtu), Message::Dreq(dreq), Message::Drep(drep)] =
        messages.as_slice()
    else {
        panic!("{messages:?}")
    };
    let (active, passive) = (CommId(0x5329_cf50), CommId(0x21ad_1eef));
    assert_eq!(req.local_comm_id, active);
    assert_eq!((rep.local_comm_id, rep.remote_comm_id), (passive, active));
    assert_eq!((rtu.local_comm_id, rtu.remote_comm_id), (active, passive));
    assert_eq!((dreq.local_comm_id, dreq.remote_comm_id, dreq.remote_qpn.get()), (active, passive, 0x1e));
    assert_eq!((drep.local_comm_id, drep.remote_comm_id), (passive, active));
    assert_eq!((req.local_ca_guid, rep.local_ca_guid), (Guid(0x5054_00ff_fe77_0012), Guid(0x5054_00ff_fe77_0011)));
    assert_eq!((req.starting_psn.get(), rep.starting_psn.get()), (0xa4_6bc0, 0xaf_e688));
    assert_eq!((req.remote_cm_response_timeout.get(), req.local_cm_response_timeout.get()), (0x14, 0x14));
    assert_eq!((req.retry_count.get(), req.rnr_retry_count.get(), req.max_cm_retries.get()), (7, 7, 15));
    assert_eq!((req.primary.local_ack_timeout.get(), rep.target_ack_delay.get()), (0x13, 0x0f));
    assert_eq!((req.primary.local_lid, req.primary.hop_limit, req.has_alternate()), (0xffff, 64, false));
    assert_eq!((req.service_id, req.path_mtu.mtu()), (ServiceId::new(PortSpace::Tcp, 7174), Some(PathMtu::Mtu1024)));
}

// clause: CM-GSI
#[test]
fn captured_connection_messages_use_our_gsi_fields() {
    for_each_mad(|at, _, packet, _| {
        let ours = gsi_header(packet.header.bth.psn);
        assert_eq!(packet.header.kind, ours.kind, "{at}");
        assert_eq!(packet.header.bth.pkey, ours.bth.pkey, "{at}");
    });
}

// clause: CM-IP-HEADER, CM-SERVICE-ID
#[test]
fn captured_requests_contain_the_addresses_of_their_packets() {
    let mut requests = 0;
    for_each_mad(|at, net, _, mad| {
        let mut flow_label = None;
        let (service, private_data, space) = match &mad.message {
            Message::Req(req) => {
                assert_eq!((req.primary.local_gid, req.primary.remote_gid), (net.src, net.dst), "{at}");
                flow_label = Some(req.primary.flow_label.get());
                (req.service_id, &req.private_data.as_bytes()[..], PortSpace::Tcp)
            }
            Message::SidrReq(req) => (req.service_id, &req.private_data.as_bytes()[..], PortSpace::Udp),
            _ => return,
        };
        requests += 1;
        let (header, _) = IpCmHeader::parse(private_data).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!((header.addresses.src(), header.addresses.dst()), (net.src.to_ip(), net.dst.to_ip()), "{at}");
        let (found, port) = service.port().unwrap_or_else(|| panic!("{at}: {service}"));
        assert_eq!(found, space, "{at}");
        // Linux computes the flow label from the two ports.
        let label = (u32::from(header.src_port) * 31 + u32::from(port)) & 0xf_ffff;
        assert!(flow_label.is_none_or(|found| found == label), "{at}: {label:#x}");
        assert_eq!(header.to_bytes(), private_data[..IpCmHeader::LEN], "{at}");
    });
    assert_eq!(requests, 10);
}
