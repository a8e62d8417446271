//! Bad peers against a process that listens and has connections: messages cut, duplicated, out of
//! order, from the wrong address, with wrong ids and in wrong packets. Counters report them,
//! connections and new requests of others work, and no state is left. The peers are sockets at
//! other loopback addresses, in a network namespace.

use crate::common::ends::*;
use crate::common::namespace;
use crate::common::peer::{MARK, Peer, ROLE};
use crate::common::*;
use roxe_net::udp::BareLink;
use roxe_provider::cm::{EventKind, Id, IdOption, Path, PortSpace, RejReason, connections};
use roxe_provider::wire::cm::{
    Answered, Apr, AprStatus, CommId, Drep, Dreq, Guid, Info, IpCmHeader, IpPair, Lap, Mad, Message, Mra, PrivateData,
    Rej, RejReason as Reason, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq, SidrStatus, TimeCode, TransactionId, Uint,
    gsi_header,
};
use roxe_provider::wire::{Deth, Gid, Header, Kind, NetHeader, Packet, PathMtu, Pkey, Psn, Qkey, Qpn, icrc};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

const VICTIM: Ipv4Addr = Ipv4Addr::LOCALHOST;
const PEER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const GUID: Guid = Guid(0x0bad);
const BACKLOG: i32 = 8;
/// Short timeouts for connections that bad peers begin: 4 ms and 64 ms.
const SOON: TimeCode = TimeCode::new(10);
/// Timeout for a peer that answers: 2 s, three times.
const IN_TIME: TimeCode = TimeCode::new(19);
const TIMEOUT: Duration = Duration::from_secs(20);
/// Makes the process wait for the end of timewait.
const STAYS: &str = "ROXE_TEST_STAYS";

/// A bad peer.
struct Hostile {
    socket: UdpSocket,
    link: BareLink,
    net: NetHeader,
}

impl Hostile {
    fn at(address: Ipv4Addr) -> Self {
        let link = bare_peer(address);
        let socket = UdpSocket::from(link.receiver.try_clone().unwrap());
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let net =
            NetHeader { src: address.into(), dst: VICTIM.into(), src_port: link.source_port(), ..NetHeader::default() };
        Self { socket, link, net }
    }

    /// Sends a packet. The kernel chooses its IPv4 identification; the ICRC is right for one of
    /// them.
    fn send_packet(&self, header: &Header, payload: &[u8]) {
        let len = header.padded_len(payload.len());
        let mut bytes = vec![0; len + icrc::LEN];
        header.emit(payload.len(), &mut bytes[..len]).unwrap().copy_from_slice(payload);
        icrc::seal(&self.net, &mut bytes);
        self.link.sender().send_to(&bytes, &victim()).unwrap();
    }

    fn send(&self, message: impl Into<Message>) {
        let mad = Mad { tid: TransactionId(9), modifier: 0, message: message.into() };
        self.send_packet(&gsi_header(Psn::new(1)), &mad.to_bytes());
    }

    /// Returns the next message with this name; skips retransmits of others.
    fn receive(&self, wanted: &str) -> Message {
        let mut bytes = [0; 2048];
        loop {
            let len = match self.socket.recv(&mut bytes) {
                Ok(len) => len,
                // The process was stopped and continued (`man 7 signal`).
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => panic!("no {wanted}: {e}"),
            };
            let packet = Packet::parse(&bytes[..len]).unwrap();
            let mad = Mad::of_packet(&packet).unwrap().unwrap();
            if mad.message.name() == wanted {
                return mad.message;
            }
        }
    }

    /// Returns a correct connect request.
    fn req(&self, service_id: ServiceId, serial: u32) -> Req {
        let (src, dst) = (self.net.src, self.net.dst);
        let mut req = Req {
            local_comm_id: CommId(0x7700_0000 | serial),
            service_id,
            local_ca_guid: GUID,
            local_qpn: Qpn::new(0x1000 + serial),
            local_cm_response_timeout: SOON,
            path_mtu: PathMtu::Mtu1024.into(),
            max_cm_retries: Uint::new(2),
            private_data: addresses(src, dst),
            ..Req::default()
        };
        (req.primary.local_gid, req.primary.remote_gid, req.primary.local_ack_timeout) = (src, dst, SOON);
        req
    }

    /// Returns message kind `which` about the connection with these ids.
    fn about(&self, service_id: ServiceId, ours: CommId, theirs: CommId, which: u32) -> Message {
        let (local_comm_id, remote_comm_id, answered) = (theirs, ours, Answered::from_code(which as u8 / 16 % 4));
        let info = Info::new(&GUID.0.to_be_bytes()).unwrap();
        match which % 11 {
            0 => self.req(service_id, which).into(),
            1 => Rep { local_comm_id, remote_comm_id, local_qpn: Qpn::new(5), local_ca_guid: GUID, ..Rep::default() }
                .into(),
            2 => Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }.into(),
            3 => {
                let reason =
                    [Reason::Timeout, Reason::StaleConnection, Reason::ConsumerDefined][which as usize / 64 % 3];
                let private_data = PrivateData::EMPTY;
                Rej { local_comm_id, remote_comm_id, answered, info, reason, private_data }.into()
            }
            4 => {
                let (service_timeout, private_data) = (SOON, PrivateData::EMPTY);
                Mra { local_comm_id, remote_comm_id, answered, service_timeout, private_data }.into()
            }
            5 => Dreq { local_comm_id, remote_comm_id, remote_qpn: Qpn::new(which), ..Dreq::default() }.into(),
            6 => Drep { local_comm_id, remote_comm_id, ..Drep::default() }.into(),
            7 => {
                let private_data = addresses(self.net.src, self.net.dst);
                SidrReq { request_id: theirs, pkey: Pkey::DEFAULT, service_id, private_data }.into()
            }
            8 => SidrRep {
                request_id: ours,
                status: SidrStatus::Success,
                info,
                vendor_id: Default::default(),
                qpn: Qpn::new(5),
                service_id,
                qkey: Qkey(1),
                private_data: PrivateData::EMPTY,
            }
            .into(),
            9 => Lap { local_comm_id, remote_comm_id, local_gid: self.net.src, ..Lap::default() }.into(),
            _ => {
                let (status, private_data) = (AprStatus::Success, PrivateData::EMPTY);
                Apr { local_comm_id, remote_comm_id, info, status, private_data }.into()
            }
        }
    }
}

fn addresses<const N: usize>(src: Gid, dst: Gid) -> PrivateData<N> {
    let addresses = IpPair::new(src.to_ip(), dst.to_ip()).unwrap();
    IpCmHeader { src_port: 1, addresses }.with_program_data(b"bad").unwrap()
}

/// The attacked process.
struct Victim {
    node: Node,
    listener: End,
    datagrams: End,
    service: ServiceId,
    /// Requests answered and not ended.
    kept: RefCell<Vec<Arc<Id>>>,
}

impl Victim {
    fn new() -> Self {
        let listen = |space| {
            let end = End::new(space);
            end.id.bind(&address(LOOPBACK)).unwrap();
            end.id.listen(BACKLOG).unwrap();
            end
        };
        let (listener, datagrams) = (listen(PortSpace::Tcp), listen(PortSpace::Udp));
        let service = ServiceId::new(PortSpace::Tcp, listener.address().port());
        Self { node: Node::open(), listener, datagrams, service, kept: RefCell::default() }
    }

    fn counters(&self) -> HashMap<&'static str, u64> {
        self.node.context.counters().into_iter().collect()
    }

    /// Waits until a counter is at least `least`.
    fn wait_for(&self, name: &str, least: u64) {
        let start = Instant::now();
        while counter(&self.node.context, name) < least {
            assert!(start.elapsed() < TIMEOUT, "{name} is {}", counter(&self.node.context, name));
            std::thread::yield_now();
        }
    }

    fn connections(&self) -> usize {
        connections(self.node.context.device())
    }

    /// Accepts a connection of a bad peer. Returns its end, and its id in this process.
    fn befriend(&self, peer: &Hostile) -> (End, CommId) {
        let req = Req { local_cm_response_timeout: IN_TIME, ..peer.req(self.service, 1) };
        peer.send(req.clone());
        let passive = self.listener.next_request().0.with_qp(&self.node);
        passive.id.accept(&conn_param(b"welcome")).unwrap();
        let Message::Rep(rep) = peer.receive("REP") else { unreachable!() };
        let (local_comm_id, remote_comm_id) = (req.local_comm_id, rep.local_comm_id);
        peer.send(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() });
        passive.expect(EventKind::Established);
        (passive, rep.local_comm_id)
    }

    /// Handles pending events in a way chosen by `temper`.
    fn work(&self, temper: u32) {
        for (n, end) in [&self.listener, &self.datagrams].into_iter().cycle().take(4).enumerate() {
            while let Some(event) = end.channel.try_next() {
                if event.kind != EventKind::ConnectRequest {
                    event.id.destroy();
                    continue;
                }
                self.answer(&event.id, temper + n as u32);
            }
        }
    }

    /// Connects two ids among the requests of bad peers.
    fn connect(&self) -> (End, End) {
        let active = End::resolved(PortSpace::Tcp, &self.listener.address()).with_qp(&self.node);
        active.id.connect(&conn_param(b"hello")).unwrap();
        let id = self.find(|id| id.peer_addr() == active.id.local_addr());
        let passive = End { channel: Arc::clone(&self.listener.channel), id, qp: None }.with_qp(&self.node);
        passive.id.accept(&conn_param(b"welcome")).unwrap();
        active.expect(EventKind::Established);
        self.find(|id| std::ptr::eq(id, &*passive.id));
        (active, passive)
    }

    /// Returns the id of the listener's next event that is `wanted`, and destroys others.
    fn find(&self, wanted: impl Fn(&Id) -> bool) -> Arc<Id> {
        loop {
            let id = self.listener.next().id;
            if wanted(&id) {
                return id;
            }
            id.destroy();
        }
    }

    fn answer(&self, id: &Arc<Id>, temper: u32) {
        // Each verb fails if the peer has ended the connection meanwhile.
        match temper % 4 {
            0 => drop(id.reject(b"no", RejReason::ConsumerDefined)),
            1 => drop(id.accept(&conn_param(b"yes"))),
            2 => {}
            _ => return id.destroy(),
        }
        // Some are kept until the peer or the test ends them.
        if temper % 8 < 4 {
            id.destroy();
        } else {
            self.kept.borrow_mut().push(Arc::clone(id));
        }
    }
}

/// Runs `test` in a network namespace; `name` is the calling test.
#[track_caller]
fn alone(name: &str, test: impl FnOnce()) {
    namespace::inside(name, namespace::LOOPBACK_UP, "lo", test);
}

/// xorshift, for the same numbers in every run.
struct Random(u32);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0
    }
}

// clause: CM-MATCH, CM-UNKNOWN, CM-DREQ-UNKNOWN, CM-MAD, CM-GSI
#[test]
fn invalid_cm_messages_are_counted_and_ignored() {
    alone("invalid_cm_messages_are_counted_and_ignored", || {
        let victim = Victim::new();
        let (peer, stranger) = (Hostile::at(PEER), Hostile::at(STRANGER));
        let (friend, ours) = victim.befriend(&peer);
        let theirs = peer.req(victim.service, 1).local_comm_id;
        let before = victim.counters();
        // All but the two requests, which any peer may send; the rejection names only our id.
        let kinds = [1, 2, 135, 4, 5, 6, 8, 9, 10].into_iter();
        // Right ids from a wrong address.
        kinds.clone().for_each(|kind| stranger.send(stranger.about(victim.service, ours, theirs, kind)));
        // All but SIDR_REP, which belongs to no connection.
        victim.wait_for("cm_address", before["cm_address"] + 8);
        // Wrong ids from the right address.
        kinds.clone().for_each(|kind| peer.send(peer.about(victim.service, CommId(ours.0 ^ 1), theirs, kind)));
        victim.wait_for("cm_unknown_id", before["cm_unknown_id"] + 10);
        // Cut messages and wrong versions.
        let rtu = Rtu { local_comm_id: theirs, remote_comm_id: ours, ..Rtu::default() };
        let whole = Mad { tid: TransactionId(9), modifier: 0, message: rtu.into() }.to_bytes();
        (0..64).for_each(|quarter| peer.send_packet(&gsi_header(Psn::new(1)), &whole[..quarter * 4]));
        victim.wait_for("mad_length", before["mad_length"] + 64);
        let names = ["mad_base_version", "mad_class", "mad_class_version", "mad_method", "mad_attribute"];
        for (at, name) in [0, 1, 2, 3, 17].into_iter().zip(names) {
            let mut other = whole;
            other[at] ^= 0x40;
            peer.send_packet(&gsi_header(Psn::new(1)), &other);
            victim.wait_for(name, before[name] + 1);
        }
        // Packets that are not of queue pair 1.
        let deth = Deth { qkey: Qkey(0x1111), src_qpn: Qpn::GSI };
        peer.send_packet(&Header { kind: Kind::Ud { deth, imm: None }, ..gsi_header(Psn::new(1)) }, &whole);
        victim.wait_for("qkey", before["qkey"] + 1);
        assert!(victim.listener.has_no_event() && friend.has_no_event() && victim.datagrams.has_no_event());
        assert_eq!((victim.connections(), victim.counters()["panics"]), (1, 0));
        // The connection still works: its peer ends it.
        peer.send(Dreq {
            local_comm_id: theirs,
            remote_comm_id: ours,
            remote_qpn: friend.qp().qpn(),
            ..Dreq::default()
        });
        friend.expect(EventKind::Disconnected);
    });
}

/// Peer process whose connection the test ends: exits at once, or after timewait.
#[test]
fn peer() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let (node, listener) = (Node::open(), End::listening(PortSpace::Tcp, LOOPBACK));
    println!("\n{MARK}{}", listener.address().port());
    let passive = listener.next_request().0.with_qp(&node);
    passive.id.accept(&conn_param(b"")).unwrap();
    passive.expect(EventKind::Established);
    passive.expect(EventKind::Disconnected);
    passive.id.disconnect().unwrap();
    if std::env::var_os(STAYS).is_some() {
        passive.expect(EventKind::TimewaitExit);
    }
    std::process::exit(0);
}

// clause: CM-PARTING
#[test]
fn exit_disconnects_are_retransmitted() {
    alone("exit_disconnects_are_retransmitted", || {
        let other = Hostile::at(PEER);
        // Timewait lasts beyond the exit, or is over before.
        for (knobs, local_ack_timeout) in [(&[][..], IN_TIME), (&[(STAYS, "")], SOON)] {
            let mut leaver = Peer::start("leaver", knobs);
            let service = ServiceId::new(PortSpace::Tcp, leaver.read_line().parse().unwrap());
            let mut req = Req { local_cm_response_timeout: IN_TIME, ..other.req(service, 1) };
            req.primary.local_ack_timeout = local_ack_timeout;
            other.send(req.clone());
            let Message::Rep(rep) = other.receive("REP") else { unreachable!() };
            let (local_comm_id, remote_comm_id) = (req.local_comm_id, rep.local_comm_id);
            other.send(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() });
            other.send(Dreq { local_comm_id, remote_comm_id, remote_qpn: rep.local_qpn, ..Dreq::default() });
            // One DREQ or DREP as usual, and copies at exit: the first three may be lost.
            (0..4).for_each(|_| assert_eq!(other.receive("DREP").name(), "DREP"));
        }
    });
}

// clause: CM-REJ-RECEIVED
#[test]
fn rejection_without_local_id_reaches_owner_process() {
    alone("rejection_without_local_id_reaches_owner_process", || {
        // The kernel chooses the socket that gets a message: mostly one of these.
        let mut others: Vec<_> = (0..8).map(|_| Peer::start("leaver", &[])).collect();
        others.iter_mut().for_each(|other| drop(other.read_line()));
        let victim = Victim::new();
        for host in 2..10 {
            let peer = Hostile::at(Ipv4Addr::new(127, 0, 0, host));
            let req = Req { local_cm_response_timeout: IN_TIME, ..peer.req(victim.service, host.into()) };
            let (local_comm_id, remote_comm_id) = (req.local_comm_id, CommId::NONE);
            peer.send(req);
            let passive = victim.listener.next_request().0;
            let (answered, reason, private_data) = (Answered::Neither, Reason::Timeout, PrivateData::EMPTY);
            let info = Info::new(&GUID.0.to_be_bytes()).unwrap();
            peer.send(Rej { local_comm_id, remote_comm_id, answered, info, reason, private_data });
            passive.expect(EventKind::Rejected);
        }
    });
}

// clause: CM-REQ-AGAIN
#[test]
fn connect_request_survives_listener_restart() {
    alone("connect_request_survives_listener_restart", || {
        let (server, there) = (Hostile::at(PEER), address("127.0.0.1:7001"));
        let near = End::resolved(PortSpace::Tcp, &there).id.path().unwrap();
        let active = End::new(PortSpace::Tcp);
        active.id.resolve_addr(None, &there, 1).unwrap();
        active.expect(EventKind::AddrResolved);
        active.id.set_option(IdOption::Path(Path { dgid: PEER.into(), ..near })).unwrap();
        active.expect(EventKind::RouteResolved);
        active.id.connect(&conn_param(b"")).unwrap();
        let ask = || {
            let Message::Req(req) = server.receive("REQ") else { unreachable!() };
            req
        };
        let refuse = |req: &Req| {
            let (local_comm_id, remote_comm_id) = (CommId::NONE, req.local_comm_id);
            let (answered, reason, private_data) = (Answered::Req, Reason::InvalidServiceId, PrivateData::EMPTY);
            server.send(Rej { local_comm_id, remote_comm_id, answered, reason, info: Info::EMPTY, private_data });
        };
        let first = ask();
        refuse(&first);
        let again = ask();
        assert_eq!(again, first, "the request is retransmitted unchanged");
        refuse(&again);
        let (local_comm_id, remote_comm_id) = (CommId(5), ask().local_comm_id);
        server.send(Rep { local_comm_id, remote_comm_id, local_ca_guid: GUID, ..Rep::default() });
        active.expect(EventKind::ConnectResponse);
    });
}

// clause: CM-BACKLOG, CM-BOUNDS
#[test]
fn unfetched_requests_of_processes_are_bounded() {
    alone("unfetched_requests_of_processes_are_bounded", || {
        let victim = Victim::new();
        let peer = Hostile::at(PEER);
        let refused = victim.counters()["received_mads"];
        for serial in 0..200 {
            peer.send(peer.req(victim.service, serial));
            victim.wait_for("received_mads", refused + u64::from(serial) + 1);
        }
        let Message::Rej(rej) = peer.receive("REJ") else { unreachable!() };
        assert_eq!((rej.answered, rej.remote_comm_id.0 >> 24), (Answered::Req, 0x77));
        assert_eq!(victim.connections(), BACKLOG as usize);
        for _ in 0..BACKLOG {
            victim.listener.next_request().0.id.destroy();
        }
        assert!(victim.listener.has_no_event());
        peer.send(peer.req(victim.service, 999));
        victim.listener.next_request().0.id.destroy();
        assert_eq!(victim.connections(), 0, "those that were rejected are over");
    });
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Sends a random message about a random connection, whole, cut, or with a flipped bit.
fn throw(from: &Hostile, victim: &Victim, random: &mut Random, known: &[(CommId, CommId)]) {
    let number = random.next();
    let (ours, theirs) = known[number as usize % known.len()];
    let ours = if number & 0x700 == 0 { CommId(number) } else { ours };
    let service = if number & 0x1000 == 0 {
        victim.service
    } else {
        ServiceId::new(PortSpace::Udp, victim.datagrams.address().port())
    };
    let message = from.about(service, ours, theirs, random.next() >> 8);
    let mut bytes = Mad { tid: TransactionId(9), modifier: 0, message }.to_bytes();
    let at = random.next();
    match at % 8 {
        0 => return from.send_packet(&gsi_header(Psn::new(1)), &bytes[..at as usize / 8 % 64 * 4]),
        1 => bytes[at as usize / 8 % 256] ^= 1 << (at >> 24 & 7),
        _ => {}
    }
    for _ in 0..=at >> 30 {
        from.send_packet(&gsi_header(Psn::new(1)), &bytes);
    }
}

// clause: CM-BOUNDS, CM-BACKLOG, CM-TIMEWAIT, CM-DESTROY
#[test]
fn cm_message_flood_leaves_connections_working() {
    alone("cm_message_flood_leaves_connections_working", || {
        let victim = Victim::new();
        let (active, passive) = connected(&victim.node, &victim.listener);
        let (peer, stranger) = (Hostile::at(PEER), Hostile::at(STRANGER));
        let (friend, ours) = victim.befriend(&peer);
        let open = descriptors();
        let theirs = peer.req(victim.service, 1).local_comm_id;
        let known = [(ours, theirs), (ours, CommId(1)), (CommId::NONE, theirs)];
        let mut random = Random(0x5eed);
        for round in 0..100 {
            for _ in 0..20 {
                throw(&peer, &victim, &mut random, &known);
                throw(&stranger, &victim, &mut random, &known);
            }
            victim.work(round);
            assert!(victim.connections() < 1000, "{} connections", victim.connections());
            send_message(&victim.node, active.qp(), passive.qp());
        }
        assert_eq!(victim.counters()["panics"], 0);
        victim.work(3);
        let another = victim.connect();
        send_message(&victim.node, another.0.qp(), another.1.qp());
        victim.kept.take().iter().for_each(|id| id.destroy());
        for end in [&active, &passive, &friend, &another.0, &another.1, &victim.listener, &victim.datagrams] {
            end.id.destroy();
        }
        drop((active, passive, friend, another));
        let start = Instant::now();
        while victim.connections() > 0 {
            assert!(start.elapsed() < TIMEOUT, "{} are left: {:?}", victim.connections(), victim.counters());
            std::thread::yield_now();
        }
        assert!(descriptors() <= open, "{} of {open} descriptors", descriptors());
    });
}
