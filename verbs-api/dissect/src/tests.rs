//! Verdicts and texts of packets in small handmade captures.

use super::*;
use roxe_wire::capture::{Direction, Outgoing, write_interface, write_packet, write_section};
use roxe_wire::{
    Aeth, Bth, Header, Kind, Msn, NakCode, NetHeader, Psn, Qpn, RKey, Request, Response, Reth, SendTail, Syndrome, icrc,
};
use std::net::Ipv4Addr;

/// Queue pair of the requester at 10.0.0.1.
const REQUESTER: u32 = 0x11;
/// Queue pair of the responder at 10.0.0.2.
const RESPONDER: u32 = 0x22;

/// A capture to which tests add packets.
struct Tape {
    bytes: Vec<u8>,
    time: u64,
}

impl Tape {
    fn new() -> Self {
        let mut bytes = Vec::new();
        write_section(&mut bytes, "test");
        write_interface(&mut bytes, "lo");
        Self { bytes, time: 0 }
    }

    fn net(to: u32) -> NetHeader {
        let [requester, responder] = [1, 2].map(|host| Ipv4Addr::new(10, 0, 0, host).into());
        let (src, dst) = if to == RESPONDER { (requester, responder) } else { (responder, requester) };
        NetHeader { src, dst, src_port: 0xc000, ..NetHeader::default() }
    }

    fn packet(to: u32, psn: u32, kind: Kind, len: usize) -> Vec<u8> {
        let header = Header { bth: Bth::new(Qpn::new(to), Psn::new(psn)), kind };
        let mut datagram = vec![0; header.padded_len(len) + icrc::LEN];
        let end = datagram.len() - icrc::LEN;
        header.emit(len, &mut datagram[..end]).unwrap();
        icrc::seal(&Self::net(to), &mut datagram);
        datagram
    }

    /// Records a packet as the requester's host does.
    fn record(&mut self, to: u32, payload: &[u8], comment: &str) {
        self.time += 1000;
        let direction = if to == RESPONDER { Direction::Outbound } else { Direction::Inbound };
        let (timestamp_ns, net) = (self.time, Self::net(to));
        write_packet(&mut self.bytes, &Outgoing { interface: 0, timestamp_ns, direction, net, payload, comment });
    }

    fn request(&mut self, psn: u32, request: Request, len: usize) {
        self.record(RESPONDER, &Self::packet(RESPONDER, psn, Kind::RcRequest(request), len), "");
    }

    fn send(&mut self, psn: u32) {
        self.request(psn, Request::SendOnly(SendTail::Plain), 8);
    }

    fn response(&mut self, psn: u32, response: Response, len: usize) {
        self.record(REQUESTER, &Self::packet(REQUESTER, psn, Kind::RcResponse(response), len), "");
    }

    fn ack(&mut self, psn: u32, syndrome: Syndrome) {
        self.response(psn, Response::Ack(Aeth { syndrome, msn: Msn::new(0) }), 0);
    }

    /// Returns each packet with its finding, and the analysis.
    fn analyse(&self) -> (Vec<(Captured<'_>, Finding)>, Analysis) {
        let mut analysis = Analysis::default();
        let found = items(&self.bytes, |_| false).unwrap().map(|item| match item {
            Item::Packet(captured) => (captured, analysis.take(&captured)),
            other => panic!("{other:?}"),
        });
        (found.collect(), analysis)
    }

    fn verdicts(&self) -> Vec<&'static str> {
        self.analyse().0.iter().map(|(_, finding)| finding.event.name()).collect()
    }

    fn descriptions(&self) -> Vec<String> {
        self.analyse().0.iter().map(|(captured, finding)| describe(captured, finding)).collect()
    }
}

const fn reth(dma_len: u32) -> Reth {
    Reth { va: 0x1000, rkey: RKey(7), dma_len }
}

#[test]
fn lost_packet_is_explained_from_nak_to_acknowledgement() {
    let mut tape = Tape::new();
    [10, 11, 12].into_iter().for_each(|psn| tape.send(psn));
    tape.ack(11, Syndrome::Nak(NakCode::PsnSequence));
    [11, 12].into_iter().for_each(|psn| tape.send(psn));
    tape.send(12);
    tape.ack(12, Syndrome::ACK_UNLIMITED);
    let descriptions = tape.descriptions();
    assert_eq!(descriptions[3], "NAK: PSN sequence error, expects PSN 11: packets are missing");
    assert_eq!(descriptions[4], "retransmission of PSN 11, 2nd time, after the NAK; a SEND of 8 bytes");
    assert_eq!(descriptions[5], "retransmission of PSN 12, 2nd time, after the NAK; a SEND of 8 bytes");
    assert_eq!(descriptions[6], "retransmission of PSN 12, 3rd time, no response seen in time; a SEND of 8 bytes");
    assert_eq!(descriptions[7], "acknowledges everything up to PSN 12, which completes 2 messages");
    let messages = tape.analyse().1.messages().to_vec();
    assert_eq!(messages.iter().map(|m| (m.psn.get(), m.repeats)).collect::<Vec<_>>(), [(10, 0), (11, 1), (12, 2)]);
    assert!(messages.iter().all(|message| message.outcome == Outcome::Done));
}

#[test]
fn gap_and_late_packet_are_explained() {
    let mut tape = Tape::new();
    [1, 4, 2, 3, 5].into_iter().for_each(|psn| tape.send(psn));
    assert_eq!(tape.verdicts(), ["ok", "PSN gap", "fills gap", "fills gap", "ok"]);
    assert!(tape.descriptions()[1].starts_with("PSN gap: 2 packets are missing before 4, from 2 on"));
}

#[test]
fn sequence_numbers_wrap() {
    let mut tape = Tape::new();
    [0xff_fffe, 0xff_ffff, 0, 1, 0xff_ffff].into_iter().for_each(|psn| tape.send(psn));
    tape.ack(1, Syndrome::ACK_UNLIMITED);
    assert_eq!(tape.verdicts(), ["ok", "ok", "ok", "ok", "retransmission", "ok"]);
    assert_eq!(tape.analyse().0[5].1.completes, 4);
}

#[test]
fn rnr_nak_and_its_retransmission_are_explained() {
    let mut tape = Tape::new();
    tape.send(7);
    tape.ack(7, Syndrome::RnrNak { timer: 12 });
    tape.send(7);
    tape.ack(7, Syndrome::RnrNak { timer: 12 });
    tape.send(7);
    tape.ack(7, Syndrome::ACK_UNLIMITED);
    let descriptions = tape.descriptions();
    assert_eq!(descriptions[1], "RNR NAK: no receive is posted for PSN 7; retransmit after 640µs");
    assert!(descriptions[2].starts_with("retransmission of PSN 7, 2nd time, after the RNR NAK"), "{}", descriptions[2]);
    assert!(descriptions[3].starts_with("RNR NAK, 2nd time: "), "{}", descriptions[3]);
    assert!(descriptions[4].starts_with("retransmission of PSN 7, 3rd time, after the RNR NAK"), "{}", descriptions[4]);
    assert!(descriptions[5].ends_with("which completes a message"), "{}", descriptions[5]);
}

#[test]
fn read_takes_a_psn_for_each_response() {
    let mut tape = Tape::new();
    let aeth = Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(1) };
    tape.request(20, Request::Read(reth(700)), 0);
    tape.response(20, Response::ReadFirst(aeth), 256);
    tape.response(22, Response::ReadLast(aeth), 188);
    tape.response(20, Response::ReadFirst(aeth), 256);
    tape.send(23);
    tape.request(24, Request::Read(reth(512)), 0);
    tape.send(27);
    let expected = ["ok", "ok", "response gap", "repeated response", "ok", "ok", "PSN gap"];
    assert_eq!(tape.verdicts(), expected);
    assert_eq!(tape.descriptions()[0], "an RDMA READ requests 700 bytes at 0x1000");
    assert_eq!(tape.analyse().0[2].1.message, Some(0));
}

#[test]
fn nak_ends_its_message() {
    let mut tape = Tape::new();
    tape.request(5, Request::WriteOnly(reth(4), None), 4);
    tape.ack(5, Syndrome::Nak(NakCode::RemoteAccess));
    let (found, analysis) = tape.analyse();
    assert_eq!(found[1].1.event.tone(), Tone::Bad);
    assert_eq!(analysis.messages()[0].outcome, Outcome::Refused(NakCode::RemoteAccess));
    assert!(tape.descriptions()[1].contains("remote access error"));
}

#[test]
fn damaged_packet_counts_as_sent_but_not_received() {
    let mut tape = Tape::new();
    tape.send(1);
    let mut damaged = Tape::packet(RESPONDER, 2, Kind::RcRequest(Request::SendOnly(SendTail::Plain)), 8);
    damaged[14] ^= 1;
    tape.record(RESPONDER, &damaged, "");
    tape.send(3);
    tape.record(RESPONDER, &[0xff; 20], "");
    assert_eq!(tape.verdicts(), ["ok", "ICRC wrong", "ok", "malformed"]);
}

#[test]
fn acknowledgement_dropped_by_a_rule_completes_nothing() {
    let mut tape = Tape::new();
    tape.send(1);
    let ack = Response::Ack(Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(1) });
    let ack = Tape::packet(REQUESTER, 1, Kind::RcResponse(ack), 0);
    tape.record(REQUESTER, &ack, "qp 0x11 received | rule 1: drop 3%: dropped");
    tape.send(1);
    tape.record(REQUESTER, &ack, "");
    let (found, _) = tape.analyse();
    assert_eq!((found[1].1.completes, found[3].1.completes), (0, 1));
    assert!(tape.descriptions()[1].ends_with("; a fault rule dropped it"));
    assert!(!tape.descriptions()[2].contains("acknowledged already"));
}

#[test]
fn flows_of_a_connection_are_paired() {
    let mut tape = Tape::new();
    tape.send(1);
    assert_eq!(tape.analyse().1.flows()[0].source, None);
    tape.ack(1, Syndrome::ACK_UNLIMITED);
    let sources = |tape: &Tape| tape.analyse().1.flows().iter().map(|flow| flow.source).collect::<Vec<_>>();
    assert_eq!(sources(&tape), [REQUESTER, RESPONDER].map(|qpn| Some(Qpn::new(qpn))));
    // The comment of the sending process has the source queue pair.
    let mut tape = Tape::new();
    let send = Tape::packet(RESPONDER, 1, Kind::RcRequest(Request::SendOnly(SendTail::Plain)), 8);
    tape.record(RESPONDER, &send, "qp 0x11 wr_id 1 first");
    assert_eq!(sources(&tape), [Some(Qpn::new(REQUESTER))]);
}

#[test]
fn new_connection_of_a_queue_pair_number_is_not_a_gap() {
    let mut tape = Tape::new();
    [1, 2, 0x50_0000, 0x50_0001].into_iter().for_each(|psn| tape.send(psn));
    assert_eq!(tape.verdicts(), ["ok", "ok", "new sequence", "ok"]);
}

#[test]
fn uc_message_ends_when_it_is_sent() {
    let mut tape = Tape::new();
    let packets =
        [(1, Request::SendFirst), (2, Request::SendLast(SendTail::Plain)), (4, Request::SendOnly(SendTail::Plain))];
    for (psn, request) in packets {
        let kind = Kind::UcRequest(request.try_into().expect("UC has it"));
        tape.record(RESPONDER, &Tape::packet(RESPONDER, psn, kind, 256), "");
    }
    assert_eq!(tape.verdicts(), ["ok", "ok", "PSN gap"]);
    let (_, analysis) = tape.analyse();
    let messages: Vec<_> = analysis.messages().iter().map(|m| (m.outcome, m.packets, m.bytes)).collect();
    assert_eq!(messages, [(Outcome::Sent, 2, 512), (Outcome::Sent, 1, 256)]);
}

#[test]
fn page_has_columns_rows_and_summary() {
    let mut tape = Tape::new();
    [1, 2, 2].into_iter().for_each(|psn| tape.send(psn));
    tape.ack(2, Syndrome::ACK_UNLIMITED);
    let (found, analysis) = tape.analyse();
    let mut counts = Counts::default();
    found.iter().for_each(|(captured, finding)| counts.add(captured, finding));
    let page = page("test".into(), &found, &analysis, &counts, Vec::new());
    let columns: Vec<_> = page.columns.iter().map(|(host, name)| (host.as_str(), name.as_str())).collect();
    assert_eq!(columns, [("10.0.0.1", "0x11"), ("10.0.0.2", "0x22")]);
    // Columns, label, verdict, message.
    let arrow = |row: usize| serde_json::Value::from_iter([2, 3, 4, 7, 9].map(|at| page.rows[row][at].clone()));
    let again = "retransmission of PSN 2, 2nd time, no response seen in time; a SEND of 8 bytes";
    assert_eq!(arrow(2), serde_json::json!([0, 1, "SEND_ONLY psn=2 len=8", again, 1]));
    let ack = "acknowledges everything up to PSN 2, which completes 2 messages";
    assert_eq!(arrow(3), serde_json::json!([1, 0, "ACK psn=2 msn=0", ack, 1]));
    assert_eq!(page.messages[1][9], "complete, after retransmissions");
    let value = |name| page.summary.iter().find(|(known, ..)| *known == name).map(|(_, value, _)| value.as_str());
    assert_eq!((value("packets"), value("queue pairs"), value("retransmissions")), (Some("4"), Some("2"), Some("1")));
    let fields: Vec<_> = sections(&found[3].0).iter().map(|section| section.name).collect();
    assert_eq!(page.rows[3][12].as_array().map(Vec::len), Some(fields.len()));
    assert_eq!(fields, ["IPv4", "UDP", "BTH", "AETH", "Payload", "ICRC"]);
}

#[test]
fn arbitrary_bytes_cause_no_panic() {
    let mut tape = Tape::new();
    let aeth = Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(1) };
    [1, 2, 2, 9, 3].into_iter().for_each(|psn| tape.send(psn));
    tape.request(10, Request::Read(reth(700)), 0);
    tape.response(10, Response::ReadFirst(aeth), 256);
    tape.ack(9, Syndrome::RnrNak { timer: 1 });
    tape.ack(9, Syndrome::Nak(NakCode::InvalidRequest));
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let mut packets = 0;
    for _ in 0..2000 {
        let mut bytes = tape.bytes.clone();
        // The ICRC detects most damage. It does not cover the network headers before it.
        for _ in 0..1 + random() % 4 {
            let at = random() % bytes.len();
            bytes[at] = random() as u8;
        }
        bytes.truncate(bytes.len() - random() % 3 * (random() % 200));
        let (mut analysis, mut counts, mut found) = (Analysis::default(), Counts::default(), Vec::new());
        for item in items(&bytes, |_| false).into_iter().flatten() {
            if let Item::Packet(captured) = item {
                let finding = analysis.take(&Captured { integrity: Integrity::Good, ..captured });
                counts.add(&captured, &finding);
                found.push((captured, finding));
                packets += 1;
            }
        }
        let html = render(&page("test".into(), &found, &analysis, &counts, Vec::new()));
        assert_eq!(html.matches("</script>").count(), 2);
    }
    assert!(packets > 5000, "{packets}");
}

/// Returns the capture truncated to `snap` bytes per frame, as by `tcpdump -s`, as a pcap file of
/// raw IP.
fn truncated(tape: &Tape, snap: usize) -> Vec<u8> {
    let mut file = vec![0xa1, 0xb2, 0x3c, 0x4d, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 101];
    for frame in roxe_wire::capture::frames(&tape.bytes).unwrap() {
        let data = frame.unwrap().data;
        let kept = &data[..data.len().min(snap)];
        for number in [0, 0, kept.len() as u32, data.len() as u32] {
            file.extend(number.to_be_bytes());
        }
        file.extend(kept);
    }
    file
}

fn judged(file: &[u8]) -> (Counts, Vec<String>) {
    let (mut counts, mut analysis, mut found) = (Counts::default(), Analysis::default(), Vec::new());
    for item in items(file, |_| false).unwrap() {
        match item {
            Item::Packet(captured) => {
                let finding = analysis.take(&captured);
                counts.add(&captured, &finding);
                found.push(describe(&captured, &finding));
            }
            Item::Other(other) => counts.others.add(other),
            Item::Broken(..) => panic!("{item:?}"),
        }
    }
    (counts, found)
}

#[test]
fn truncated_packets_are_checked_by_their_headers() {
    let mut tape = Tape::new();
    tape.request(10, Request::WriteFirst(reth(2048)), 1024);
    tape.request(12, Request::WriteLast(None), 1024);
    tape.ack(12, Syndrome::Ack { credits: 31 });
    // IP, UDP and the headers of the first packet, and 2 bytes of payload.
    let (counts, found) = judged(&truncated(&tape, 20 + 8 + 12 + 16 + 2));
    assert_eq!((counts.packets, counts.truncated, counts.bad, counts.gaps), (3, 2, 0, 1));
    assert!(
        counts.to_string().starts_with("3 RoCEv2 packets, 0 of them bad, 2 of them truncated; 0 other"),
        "{counts}"
    );
    assert!(
        found[0].contains("an RDMA WRITE of 2048 to 0x1000 begins: 1024 bytes") && found[0].contains("; truncated")
    );
    assert!(found[1].contains("1024 bytes") && !found[2].contains("truncated"), "{found:?}");
    // A packet truncated within the BTH is counted without a check.
    let (counts, found) = judged(&truncated(&tape, 20 + 8 + 6));
    assert_eq!((counts.packets, counts.truncated, counts.bad), (3, 3, 0));
    assert!(found[0].contains("lacks some of its headers"), "{found:?}");
}

#[test]
fn bad_headers_of_truncated_packets_are_bad() {
    let mut tape = Tape::new();
    let mut packet = Tape::packet(RESPONDER, 10, Kind::RcRequest(Request::SendOnly(SendTail::Plain)), 400);
    packet[0] = 0x1f;
    tape.record(RESPONDER, &packet, "");
    let (counts, _) = judged(&truncated(&tape, 60));
    assert_eq!((counts.packets, counts.bad, counts.truncated), (1, 1, 0));
}
