//! Links on loopback addresses that no other test uses.

use super::*;
use std::net::Ipv4Addr;

// Other programs may share port 4791, so these tests use addresses of their own.
fn link(last: u8, gso: bool, gro: bool) -> UdpLink {
    UdpLink::open(Ipv4Addr::new(127, 77, 0, last).into(), 1, gso, gro).unwrap()
}

fn recv(link: &UdpLink, buf: &mut [u8]) -> RxMeta {
    link.recv(buf).unwrap().expect("loopback delivers before sendmsg returns")
}

// clause: IP-TOS, IP-TTL
#[test]
fn run_arrives_with_segment_size_tos_and_ttl() {
    let (a, b) = (link(1, true, true), link(2, true, true));
    let run: Vec<u8> = (0..250u8).collect();
    let to = NetHeader { dst: b.gid(), src_port: ROCE_PORT, traffic_class: 0x68, hop_limit: 7, ..NetHeader::default() };
    a.send(&to, &run, 100).unwrap();
    let mut buf = vec![0; 65_536];
    let meta = recv(&b, &mut buf);
    assert_eq!((meta.len, meta.segment), (250, 100));
    assert_eq!((meta.src, meta.dst, meta.src_port), (a.gid(), b.gid(), ROCE_PORT));
    assert_eq!((meta.traffic_class, meta.hop_limit), (0x68, 7));
    assert_eq!(&buf[..250], &run[..]);
    assert!(b.recv(&mut buf).unwrap().is_none());
}

// clause: IP-TTL
#[test]
fn hop_limits_0_and_1_are_sent_as_64() {
    let (a, b) = (link(7, true, true), link(8, true, true));
    let mut buf = vec![0; 65_536];
    for (asked, sent) in [(0, 64), (1, 64), (2, 2), (64, 64), (255, 255)] {
        a.send(
            &NetHeader { dst: b.gid(), src_port: ROCE_PORT, hop_limit: asked, ..NetHeader::default() },
            &[1; 20],
            20,
        )
        .unwrap();
        assert_eq!(recv(&b, &mut buf).hop_limit, sent, "requested {asked}");
    }
}

// clause: UD-MULTICAST
#[test]
fn every_group_socket_gets_a_copy_until_closed() {
    let [a, b, ..] = std::process::id().to_le_bytes();
    let group = Ipv4Addr::new(239, 77, b, a).into();
    let (from, mut buf) = (link(9, true, true), vec![0; 65_536]);
    let members = [(); 3].map(|()| UdpLink::join(group, 1, true).unwrap());
    for (asked, sent) in [(0, 64), (1, 1), (7, 7)] {
        from.send(
            &NetHeader { dst: group, src_port: ROCE_PORT, hop_limit: asked, ..NetHeader::default() },
            &[asked; 30],
            30,
        )
        .unwrap();
        for member in &members {
            let meta = recv(member, &mut buf);
            assert_eq!((meta.len, meta.src, meta.dst, meta.hop_limit), (30, from.gid(), group, sent));
        }
    }
    assert!(from.recv(&mut buf).unwrap().is_none(), "the sender's own address is none of the group's");
    let joined = || std::fs::read_to_string("/proc/net/igmp").unwrap().contains(&format!("{a:02X}{b:02X}4DEF"));
    assert!(joined());
    drop(members);
    assert!(!joined());
}

// clause: UDP-CHECKSUM
#[test]
fn datagram_without_checksum_is_accepted() {
    let socket = || Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    let (from, to) = (socket(), socket());
    set_v6_options(&to, 1).unwrap();
    if to.bind(&SockAddr::from(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 0, 0, 0))).is_err() {
        // Skipped without IPv6.
        return;
    }
    for no_checksum in [1, 0] {
        sys::set_option(from.as_raw_fd(), libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_TX, no_checksum).unwrap();
        from.send_to(&[7; 24], &to.local_addr().unwrap()).unwrap();
        let received = sys::recv(to.as_raw_fd(), &mut [0; 64], &mut Control::new()).unwrap();
        assert_eq!(received.map(|(len, ..)| len), Some(24), "without checksum: {no_checksum}");
    }
}

#[test]
fn without_gro_packets_arrive_one_by_one() {
    let (a, b) = (link(3, true, true), link(4, true, false));
    a.send(&NetHeader { dst: b.gid(), src_port: ROCE_PORT, ..NetHeader::default() }, &[7; 250], 100).unwrap();
    let mut buf = vec![0; 65_536];
    let lens: Vec<usize> = (0..3).map(|_| recv(&b, &mut buf).len).collect();
    assert_eq!(lens, [100, 100, 50]);
}

#[test]
fn smaller_receive_buffer_is_as_reported() {
    // The kernel doubles the requested size.
    assert_eq!(link(7, true, true).with_rcvbuf(65_536).unwrap().rcvbuf(), 131_072);
}

#[test]
fn refused_segmentation_is_retried_later_per_destination() {
    let (a, b) = (link(5, true, true), link(6, true, true));
    let to = NetHeader { dst: b.gid(), src_port: ROCE_PORT, hop_limit: 64, ..NetHeader::default() };
    assert!(matches!(a.send(&to, &[0; 400], 1), Err(SendError::NoSegments)));
    assert_eq!((a.max_segments(b.gid()), a.max_segments(a.gid())), (1, MAX_SEGMENTS));
    assert!((0..MAX_SEGMENTS).any(|_| a.max_segments(b.gid()) == MAX_SEGMENTS), "segmentation is never tried again");
    a.send(&to, &[0; 40], 10).unwrap();
    assert_eq!(a.max_segments(b.gid()), MAX_SEGMENTS);
}

// clause: IP-TOS
#[test]
fn ipv6_run_arrives_with_class_and_hop_limit() {
    let gid = IpAddr::V6(Ipv6Addr::LOCALHOST).into();
    let Ok(link) = UdpLink::open(gid, 1, true, true) else { return };
    let to = NetHeader { dst: gid, src_port: ROCE_PORT, traffic_class: 0x20, hop_limit: 9, ..NetHeader::default() };
    link.send(&to, &[0xfd; 40], 20).unwrap();
    let mut buf = vec![0; 65_536];
    while let Some(meta) = link.recv(&mut buf).unwrap() {
        if buf[0] == 0xfd {
            assert_eq!((meta.len, meta.segment, meta.traffic_class, meta.hop_limit), (40, 20, 0x20, 9));
            return;
        }
    }
    // Another process on this machine owns the port too and got the packet instead; it counts and
    // drops it.
}

#[test]
fn stop_receiving_keeps_queued_packets_only() {
    let (group, from) =
        ([(); 2].map(|()| link(10, true, false)), [(); 64].map(|()| UdpSocket::bind("127.77.0.11:0").unwrap()));
    let mut buf = vec![0; 65_536];
    let send_all = || from.iter().for_each(|from| _ = from.send_to(&[7; 20], ("127.77.0.10", ROCE_PORT)).unwrap());
    let mut count = |link: &UdpLink| std::iter::from_fn(|| link.recv(&mut buf).unwrap()).count();
    send_all();
    group[0].stop_receiving();
    send_all();
    let (stopped, other) = (count(&group[0]), count(&group[1]));
    assert!(stopped > 0, "the kernel's hash has chosen both");
    assert_eq!(stopped + other, 2 * from.len());
    send_all();
    assert_eq!((count(&group[0]), count(&group[1])), (0, from.len()));
}

fn host(last: u8) -> Gid {
    Ipv4Addr::new(127, 77, 1, last).into()
}

/// Counts sends to `dst` until segmentation is tried again.
fn pause(segments: &Segments, dst: Gid) -> u32 {
    (0..).find(|_| segments.max_segments(dst) > 1).unwrap()
}

#[test]
fn refusal_disables_segments_for_one_destination() {
    let segments = Segments::new(true);
    segments.note_refused(host(1));
    assert_eq!(segments.max_segments(host(2)), MAX_SEGMENTS, "another destination");
    assert_eq!(pause(&segments, host(1)), FIRST_PAUSE);
    assert_eq!(segments.max_segments(host(1)), MAX_SEGMENTS, "until it is refused again");
}

#[test]
fn refusals_double_pause_until_success() {
    let segments = Segments::new(true);
    segments.note_refused(host(1));
    let mut expected = FIRST_PAUSE;
    for _ in 0..20 {
        assert_eq!(pause(&segments, host(1)), expected);
        segments.note_refused(host(1));
        expected = (expected * 2).min(LONGEST_PAUSE);
    }
    assert_eq!(expected, LONGEST_PAUSE);
    segments.note_accepted(host(1));
    assert_eq!((segments.max_segments(host(1)), segments.state.load(Relaxed)), (MAX_SEGMENTS, SEGMENTS_ON));
    segments.note_refused(host(1));
    assert_eq!(pause(&segments, host(1)), FIRST_PAUSE);
}

#[test]
fn refusing_destinations_are_bounded() {
    let segments = Segments::new(true);
    (0..100).for_each(|last| segments.note_refused(host(last)));
    assert_eq!(segments.refused.lock().len(), MAX_REFUSED);
    assert_eq!((segments.max_segments(host(99)), segments.max_segments(host(0))), (1, MAX_SEGMENTS));
}

#[test]
fn system_without_segmentation_is_never_tried() {
    let segments = Segments::new(false);
    segments.note_refused(host(1));
    segments.note_accepted(host(1));
    assert_eq!((segments.max_segments(host(1)), segments.max_segments(host(2))), (1, 1));
}
