//! Replays captures of the Linux kernel's rdma_cm: given the recorded messages of one end, ours
//! must answer as the other end did.

use super::*;
use core::fmt::Debug;
use roxe_wire::capture::{Frame, frames, ip_packet};
use roxe_wire::cm::{SidrRep, SidrReq};
use roxe_wire::{Kind, NetHeader, Packet};
use std::collections::BTreeMap;

/// A recorded message, from the view of its receiver.
type Recorded = (Route, Mad);

/// Returns all messages in a capture.
fn recorded(name: &str) -> Vec<Recorded> {
    let path = format!("{}/../tests/captures/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(&path).expect("read the capture");
    let mut all = Vec::new();
    for frame in frames(&file).expect("parse the capture file") {
        let Frame { link, data, .. } = frame.expect("read the frame");
        let Some(Ok((net, datagram))) = ip_packet(link, data).map(NetHeader::parse_ip) else { continue };
        let Ok(packet) = Packet::parse(datagram) else { continue };
        if let Some(Ok(mad)) = Mad::of_packet(&packet) {
            all.push((Route { local: net.dst, remote: net.src }, mad));
        }
    }
    all
}

/// Our end in place of a recorded one. Its ids differ from the recorded ones, so the peer's
/// messages are translated.
struct Replay {
    node: Node,
    /// Our ids by the recorded ones.
    ours: BTreeMap<CommId, CommId>,
    local: Gid,
}

impl Replay {
    fn new(local: Gid, guid: Guid) -> Self {
        let mut node = Node::with(Settings::new(guid));
        for service in [0x0106_1c06, 0x0106_1d2f, 0x0111_1c06] {
            let listen = Listen { addresses: Addresses::Ip, ..Listen::new(ServiceId(service), Accepts::Both, 9) };
            node.cm.listen(listen).unwrap();
        }
        Self { node, ours: BTreeMap::new(), local }
    }

    fn our_id(&self, recorded: CommId) -> CommId {
        self.ours.get(&recorded).copied().unwrap_or(recorded)
    }

    /// Returns the peer's message with our ids.
    fn translate(&self, message: &Message) -> Message {
        let mut message = message.clone();
        match &mut message {
            Message::Rep(rep) => rep.remote_comm_id = self.our_id(rep.remote_comm_id),
            Message::Rtu(rtu) => rtu.remote_comm_id = self.our_id(rtu.remote_comm_id),
            Message::Dreq(dreq) => dreq.remote_comm_id = self.our_id(dreq.remote_comm_id),
            Message::Drep(drep) => drep.remote_comm_id = self.our_id(drep.remote_comm_id),
            Message::SidrRep(rep) => rep.request_id = self.our_id(rep.request_id),
            _ => {}
        }
        message
    }

    /// Delivers a message of the recorded peer.
    fn deliver_recorded(&mut self, (route, mad): &Recorded) {
        let mad = Mad { message: self.translate(&mad.message), ..mad.clone() };
        let result = self.node.call(|cm, cx| cm.handle_message(cx, *route, &mad));
        // The answer to crossing DREQs arrives in TimeWait.
        let crossed = matches!(mad.message, Message::Drep(_)) && result == Err(Ignored::State);
        assert!(result.is_ok() || crossed, "{mad}: {result:?}");
    }

    /// Repeats the verb of the recorded program and compares our message.
    fn repeat_verb(&mut self, recorded: &Recorded) {
        let (back, mad) = recorded;
        let route = Route { local: back.remote, remote: back.local };
        match &mad.message {
            Message::Req(req) => self.connect(route, req),
            Message::Rep(rep) => self.accept(rep),
            Message::Rtu(rtu) => {
                let id = self.our_id(rtu.local_comm_id);
                self.node.cm.confirm(id, &rtu.private_data).unwrap();
            }
            Message::Dreq(dreq) => self.disconnect(dreq.local_comm_id),
            // After crossing DREQs the DREP was already sent.
            Message::Drep(drep) if self.node.state(self.our_id(drep.local_comm_id)) == State::TimeWait => {}
            Message::Drep(drep) => self.disconnect(drep.local_comm_id),
            Message::SidrReq(request) => self.resolve(route, request),
            Message::SidrRep(rep) => self.answer(rep),
            other => panic!("{other:?} is in no capture"),
        }
        let sent = self.node.cm.poll_transmit().unwrap_or_else(|| panic!("no message instead of {mad}"));
        assert_eq!(sent.route, route);
        self.compare(&sent.mad, mad);
    }

    fn disconnect(&mut self, recorded: CommId) {
        let id = self.our_id(recorded);
        self.node.disconnect(id).unwrap();
    }

    fn connect(&mut self, route: Route, req: &Req) {
        let connect = Connect {
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            path_mtu: req.path_mtu.mtu().unwrap(),
            flow_control: req.flow_control,
            flow_label: req.primary.flow_label,
            // The recorded kernel sends 18, newer ones 16.
            packet_lifetime: TimeCode::new(18),
            private_data: req.private_data,
            ..Connect::new(route, req.service_id, req.local_qpn, req.starting_psn)
        };
        let id = self.node.call(|cm, cx| cm.connect(cx, &connect)).unwrap();
        self.ours.insert(req.local_comm_id, id);
    }

    fn accept(&mut self, rep: &Rep) {
        let is_request = |event: &Event| match &event.kind {
            EventKind::ConnectRequest(_, req, _) => req.local_comm_id == rep.remote_comm_id,
            _ => false,
        };
        let id = self.event(is_request);
        self.ours.insert(rep.local_comm_id, id);
        let accept = Accept {
            responder_resources: rep.responder_resources,
            initiator_depth: rep.initiator_depth,
            flow_control: rep.flow_control,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            private_data: rep.private_data,
            ..Accept::new(rep.local_qpn, rep.starting_psn)
        };
        self.node.call(|cm, cx| cm.accept(cx, id, &accept)).unwrap();
    }

    fn resolve(&mut self, route: Route, request: &SidrReq) {
        let private_data = request.private_data;
        let resolve = Resolve { private_data, ..Resolve::new(route, request.service_id) };
        let id = self.node.call(|cm, cx| cm.resolve(cx, &resolve)).unwrap();
        self.ours.insert(request.request_id, id);
    }

    fn answer(&mut self, rep: &SidrRep) {
        let is_request = |event: &Event| match &event.kind {
            EventKind::LookupRequest(_, request) => request.request_id == rep.request_id,
            _ => false,
        };
        let id = self.event(is_request);
        let service = Ok((rep.qpn, rep.qkey));
        let resolution = Resolution { service, ece: Ece::NONE, private_data: rep.private_data };
        self.node.cm.answer(id, &resolution).unwrap();
    }

    /// Returns the id of the first matching event; earlier events are discarded.
    fn event(&mut self, fits: impl Fn(&Event) -> bool) -> CommId {
        std::iter::from_fn(|| self.node.cm.poll_event()).find(fits).expect("find the event").id
    }

    /// Checks that our message is the recorded one with our ids.
    fn compare(&self, ours: &Mad, recorded: &Mad) {
        let mut wanted = recorded.message.clone();
        match &mut wanted {
            Message::Req(req) => req.local_comm_id = self.our_id(req.local_comm_id),
            Message::Rep(rep) => rep.local_comm_id = self.our_id(rep.local_comm_id),
            Message::Rtu(rtu) => rtu.local_comm_id = self.our_id(rtu.local_comm_id),
            Message::Dreq(dreq) => dreq.local_comm_id = self.our_id(dreq.local_comm_id),
            Message::Drep(drep) => drep.local_comm_id = self.our_id(drep.local_comm_id),
            Message::SidrReq(request) => request.request_id = self.our_id(request.request_id),
            _ => {}
        }
        assert_same(&ours.message, &wanted, self.local);
        // Answers carry the transaction of their request; requests have their own.
        let is_answer = matches!(ours.message, Message::Rep(_) | Message::Drep(_) | Message::SidrRep(_));
        assert!(!is_answer || ours.tid == recorded.tid);
        assert_eq!(ours.modifier, recorded.modifier);
    }
}

fn assert_same(ours: &impl Debug, wanted: &impl Debug, at: Gid) {
    assert_eq!(format!("{ours:#?}"), format!("{wanted:#?}"), "at {at}");
}

/// Orders crossing DREQs as the end at `local` saw them: the peer's DREQ was still in transit when
/// it sent its own.
fn as_seen(mut all: Vec<Recorded>, local: Gid) -> Vec<Recorded> {
    let is_dreq = |(_, mad): &Recorded| matches!(mad.message, Message::Dreq(_));
    for i in 1..all.len() {
        if is_dreq(&all[i - 1]) && is_dreq(&all[i]) && all[i - 1].0.local == local && all[i].0.local != local {
            all.swap(i - 1, i);
        }
    }
    all
}

/// Replaces the end with this address by ours and returns the number of messages that it sent.
fn replay(name: &str, local: Gid) -> usize {
    let all = as_seen(recorded(name), local);
    let guid_of = |(route, mad): &Recorded| match &mad.message {
        Message::Req(req) if route.remote == local => Some(req.local_ca_guid),
        Message::Rep(rep) if route.remote == local => Some(rep.local_ca_guid),
        _ => None,
    };
    let guid = all.iter().find_map(guid_of).unwrap_or(OUR_GUID);
    let mut replay = Replay::new(local, guid);
    let mut sent = 0;
    for message in &all {
        if message.0.local == local {
            replay.deliver_recorded(message);
        } else {
            replay.repeat_verb(message);
            sent += 1;
        }
    }
    assert_eq!(replay.node.cm.poll_transmit(), None, "{name}: more than was recorded");
    replay.node.run_timers();
    sent
}

// clause: CM-FIELDS-REQ, CM-FIELDS-REP, CM-SIDR, CM-DISCONNECT
#[test]
fn recorded_connections_are_replayed_as_either_side() {
    let captures = [
        ("rping", 3, 2),
        ("lossy_rping", 3, 2),
        ("ucmatose", 6, 4),
        ("udaddy", 2, 2),
        ("cmtime", 9, 6),
        ("rdma_server_client", 4, 3),
    ];
    let [server, client] = [11, 12].map(|last| Gid::from(Ipv4Addr::new(10, 77, 0, last)));
    for (name, by_client, by_server) in captures {
        assert_eq!((replay(name, client), replay(name, server)), (by_client, by_server), "{name}");
    }
}

/// On RoCE a group is joined by IGMP alone: the other packets of mckey are data for the queue pair
/// and Q_Key of the group.
#[test]
fn multicast_capture_has_no_cm_messages() {
    assert_eq!(recorded("mckey"), []);
    let path = format!("{}/../tests/captures/mckey.pcap", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(path).expect("read the capture");
    let (mut data, mut igmp) = (0, 0);
    for frame in frames(&file).expect("parse the capture file") {
        let Frame { link, data: bytes, .. } = frame.expect("read the frame");
        let ip = ip_packet(link, bytes).expect("find the IP packet");
        let Ok((net, datagram)) = NetHeader::parse_ip(ip) else {
            assert_eq!(ip[9], 2, "neither UDP nor IGMP");
            igmp += 1;
            continue;
        };
        let packet = Packet::parse(datagram).expect("parse the RoCE packet");
        let Kind::Ud { deth, .. } = packet.header.kind else { panic!("{packet:?}") };
        assert_eq!((net.dst, packet.header.bth.dest_qpn), (Ipv4Addr::new(239, 1, 2, 3).into(), Qpn::MULTICAST));
        assert_eq!(deth.qkey.0, 0x0123_4567);
        data += 1;
    }
    assert_eq!((data, igmp), (4, 6));
}
