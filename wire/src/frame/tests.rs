//! Tests of `frame.rs`.

use super::*;
extern crate std;
use std::vec::Vec;

pub(crate) fn ethernet(ether_type: u16, rest: &[u8]) -> Vec<u8> {
    let mut frame = std::vec![1, 0x50, 0x56, 0x19, 0x20, 0xa7, 0x24, 0x8a, 7, 0xa5, 0x28, 0xc8];
    frame.extend_from_slice(&ether_type.to_be_bytes());
    frame.extend_from_slice(rest);
    frame
}

/// Returns an IPv4 packet from 1.1.1.1 to 2.2.2.2 with DF and checksum 0.
pub(crate) fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = ((IPV4_LEN + payload.len()) as u16).to_be_bytes();
    let mut packet = std::vec![0x45, 3, high, low, 0, 0, 0x40, 0, 64, protocol, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];
    packet.extend_from_slice(payload);
    packet
}

/// Returns an IPv6 packet from fd00::1 to fd00::2 with flow label 0x12345.
pub(crate) fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (payload.len() as u16).to_be_bytes();
    let mut packet = std::vec![0x60, 0x31, 0x23, 0x45, high, low, next, 63];
    for last in [1, 2] {
        packet.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    packet.extend_from_slice(payload);
    packet
}

/// Returns a datagram from port 1234 to 5678 without a checksum.
pub(crate) fn udp(payload: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::new();
    for word in [1234u16, 5678, (8 + payload.len()) as u16, 0] {
        datagram.extend_from_slice(&word.to_be_bytes());
    }
    datagram.extend_from_slice(payload);
    datagram
}

fn l4_of(frame: &[u8]) -> Option<L4> {
    Layout::of(frame)?.ip?.l4
}

#[test]
fn headers_are_found_after_tags_options_and_extensions() {
    let plain = ethernet(0x0800, &ipv4(UDP, &udp(b"hi")));
    assert_eq!(l4_of(&plain), Some(L4 { protocol: UDP, start: 34 }));
    let mut tagged = plain.clone();
    tagged.splice(12..12, [0x88, 0xa8, 0xac, 0x0c, 0x81, 0, 0, 7]);
    let layout = Layout::of(&tagged).expect("parse the layout of a frame");
    assert_eq!((layout.tag, layout.ether_type, l4_of(&tagged).map(|l4| l4.start)), (Some(0xac0c), 0x0800, Some(42)));
    let mut options = plain.clone();
    (options[14], options[17]) = (0x46, options[17] + 4);
    options.splice(34..34, [0; 4]);
    assert_eq!(l4_of(&options), Some(L4 { protocol: UDP, start: 38 }));
    let hop_by_hop = [&[UDP, 0, 0, 0, 0, 0, 0, 0][..], &udp(b"")].concat();
    assert_eq!(l4_of(&ethernet(0x86dd, &ipv6(0, &hop_by_hop))), Some(L4 { protocol: UDP, start: 62 }));
}

#[test]
fn incomplete_headers_count_as_payload() {
    let frame = ethernet(0x0800, &ipv4(UDP, &udp(b"hi")));
    assert_eq!(Layout::of(&frame[..13]), None);
    assert_eq!(Layout::of(&frame[..33]).expect("parse the layout of a frame").ip, None);
    assert_eq!(Layout::of(&ethernet(0x8100, &[1])).map(|layout| layout.tag), Some(None));
    let cut = Layout::of(&frame[..40]).and_then(|layout| layout.ip).expect("find the IP header");
    assert!(!cut.is_whole && cut.end == 40);
    let padded = [&frame[..], &[0; 20]].concat();
    let ip = Layout::of(&padded).and_then(|layout| layout.ip).expect("find the IP header");
    assert!(ip.is_whole && ip.end == frame.len());
}

#[test]
fn later_fragments_have_no_ports() {
    let mut frame = ethernet(0x0800, &ipv4(UDP, &udp(b"hi")));
    frame[20] = 0x20;
    assert!(Layout::of(&frame).and_then(|l| l.ip).is_some_and(|ip| !ip.is_whole && ip.l4.is_some()));
    frame[21] = 1;
    assert_eq!(l4_of(&frame), None);
    for (offset, has_ports) in [(0, true), (8, false)] {
        let fragment = [&[UDP, 0, 0, offset | 1, 0, 0, 0, 9][..], &udp(b"")].concat();
        let frame = ethernet(0x86dd, &ipv6(44, &fragment));
        assert!(Layout::of(&frame).and_then(|l| l.ip).is_some_and(|ip| !ip.is_whole));
        assert_eq!(l4_of(&frame).is_some(), has_ports);
    }
}

use proptest::prelude::*;

fn key(frame: &[u8]) -> FrameKey {
    FrameKey::of(frame).expect("long enough")
}

#[test]
fn every_field_of_ipv4_is_read() {
    let key = key(&ethernet(0x0800, &ipv4(17, &udp(b"payload"))));
    for (field, bytes) in [
        (Field::DstMac, &[1, 0x50, 0x56, 0x19, 0x20, 0xa7][..]),
        (Field::SrcMac, &[0x24, 0x8a, 7, 0xa5, 0x28, 0xc8]),
        (Field::EtherType, &[8, 0]),
        (Field::VlanTag, &[0, 0]),
        (Field::IsTagged, &[0]),
        (Field::IpVersion, &[4]),
        (Field::L4, &[17]),
        (Field::Protocol, &[17]),
        (Field::TrafficClass, &[3]),
        (Field::HopLimit, &[64]),
        (Field::Ipv4Flags, &[2]),
        (Field::DstPort, &5678u16.to_be_bytes()),
        (Field::SrcPort, &1234u16.to_be_bytes()),
    ] {
        assert_eq!(key.get(field), bytes, "{field:?}");
    }
    assert_eq!((&key.get(Field::SrcIp)[..4], &key.get(Field::DstIp)[..4]), (&[1; 4][..], &[2; 4][..]));
    assert!(key.is_multicast());
}

#[test]
fn every_field_of_tagged_ipv6_is_read() {
    let mut frame = ethernet(0x86dd, &ipv6(17, &udp(b"")));
    frame.splice(12..12, [0x81, 0, 0xbc, 0x0c]);
    let key = key(&frame);
    for (field, bytes) in [
        (Field::EtherType, &[0x86, 0xdd][..]),
        (Field::VlanTag, &[0xbc, 0x0c]),
        (Field::IsTagged, &[1]),
        (Field::IpVersion, &[6]),
        (Field::L4, &[17]),
        (Field::TrafficClass, &[3]),
        (Field::HopLimit, &[63]),
        (Field::FlowLabel, &[0, 1, 0x23, 0x45]),
        (Field::SrcIp, &frame[26..42]),
        (Field::DstIp, &frame[42..58]),
        (Field::DstPort, &5678u16.to_be_bytes()),
    ] {
        assert_eq!(key.get(field), bytes, "{field:?}");
    }
}

#[test]
fn match_ignores_bits_outside_its_mask() {
    let key = key(&ethernet(0x0800, &ipv4(17, &udp(b""))));
    let mut wanted = FrameMatch::default();
    assert!(wanted.mask == [0; KEY_LEN] && wanted.matches(&key));
    wanted
        .require(Field::DstIp, &[2, 2, 9, 9], &[0xff, 0xff, 0, 0])
        .expect("add a requirement that contradicts no other");
    assert!(wanted.matches(&key) && wanted.dst_mac().is_none());
    wanted
        .require_exactly(Field::DstMac, &[1, 0x50, 0x56, 0x19, 0x20, 0xa7])
        .expect("add a requirement that contradicts no other");
    assert!(wanted.matches(&key) && wanted.dst_mac().is_some());
    wanted.require_exactly(Field::L4, &[6]).expect("add a requirement that contradicts no other");
    assert!(!wanted.matches(&key));
}

#[test]
fn contradictory_conditions_are_rejected() {
    let mut wanted = FrameMatch::default();
    wanted.require(Field::EtherType, &[8, 0], &[0xff, 0xff]).expect("add the first requirement");
    assert_eq!(wanted.require(Field::EtherType, &[8, 6], &[0xff, 0xf0]), Ok(()));
    assert_eq!(wanted.require(Field::EtherType, &[8, 6], &[0xff, 0xff]), Err(Contradiction));
}

proptest! {
    /// Any bytes have a key or are too short, and match what was read from them under any mask.
    #[test]
    fn frame_matches_its_own_fields(frame in prop::collection::vec(any::<u8>(), 0..100), mask in any::<[u8; 16]>()) {
        let Some(key) = FrameKey::of(&frame) else {
            prop_assert!(frame.len() < ETH_LEN);
            return Ok(());
        };
        let mut wanted = FrameMatch::default();
        for field in [Field::DstMac, Field::SrcIp, Field::DstPort, Field::Protocol] {
            prop_assert_eq!(wanted.require(field, key.get(field), &mask), Ok(()));
        }
        prop_assert!(wanted.matches(&key));
    }
}
