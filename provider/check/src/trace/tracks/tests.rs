//! Tracks of queue pairs by events; the format of a line.

use super::*;
use crate::testing;
use roxe_transport::cx::PacketNote;
use roxe_transport::qp::{QpAttr, RetryCounts, Service};
use roxe_transport::wr::{SendData, SendFlags, SendOp, SendRequest, Sge, WcStatus};
use roxe_wire::{Bth, Gid, Psn, Request, SendTail};
use serde_json::Value;

/// Tracks with one queue pair, and what they wrote.
struct Traced {
    qp: ObjectId,
    tracks: Tracks,
    lines: Lines,
    now: u64,
}

impl Traced {
    fn new() -> Self {
        let qp = ObjectId::next();
        let mut traced = Self { qp, tracks: Tracks::default(), lines: Lines::new(7), now: 0 };
        traced.emit(&Event::Created(qp, Object::Qp(testing::pair(0x11, Service::Rc))));
        traced
    }

    fn emit(&mut self, event: &Event<'_>) {
        self.now += 1000;
        self.tracks.event(&mut self.lines, event, Instant(self.now));
    }

    fn post(&mut self, wr_id: u64, flags: SendFlags) {
        let data = SendData::Sges(&[Sge { addr: 0, length: 100, lkey: roxe_wire::LKey(1) }]);
        let request = SendRequest { wr_id, op: SendOp::Send, flags, data, ud: None };
        self.emit(&Event::PostedSend { qp: self.qp, request: &request });
    }

    fn complete(&mut self, wr_id: u64, status: WcStatus) {
        let cqe = Cqe { wr_id, status, ..Cqe::default() };
        self.emit(&Event::Completed { qp: self.qp, side: Side::Send, cqe: &cqe });
    }

    fn send(&mut self, psn: u32, reason: TxReason) {
        self.now += 1000;
        let kind = Kind::RcRequest(Request::SendOnly(SendTail::Plain));
        let header = Header { bth: Bth::new(Qpn::new(0x12), Psn::new(psn)), kind };
        let (at, qpn) = (Instant(self.now), Qpn::new(0x11));
        let sent = Some(PacketNote { qpn, wr_id: Some(5), reason });
        let (peer, header) = (Gid([0; 16]), Some((header, 100)));
        let packet = TracedPacket { at, qpn, sent, peer, header, message: None, remark: None };
        self.tracks.packet(&mut self.lines, &packet, at);
    }

    /// Returns the lines since the last call: phase, name, arguments.
    fn seen(&mut self) -> Vec<(String, String, Value)> {
        let mut text = String::new();
        self.lines.swap(&mut text);
        let line = |line: &str| {
            let event: Value = serde_json::from_str(line.trim_end_matches(',')).unwrap();
            let word = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
            (word("ph"), word("name"), event["args"].clone())
        };
        text.lines().map(line).collect()
    }

    /// Phases and names of the lines since the last call, without track names.
    fn names(&mut self) -> Vec<String> {
        let seen = self.seen().into_iter().filter(|(phase, ..)| phase != "M");
        seen.map(|(phase, name, _)| format!("{phase} {name}").trim_end().to_owned()).collect()
    }
}

#[test]
fn queue_pair_has_a_named_track_with_its_states() {
    let mut traced = Traced::new();
    let attr = QpAttr { state: QpState::Rtr, dest_qpn: Qpn::new(0x12), ..QpAttr::default() };
    let mask = AttrMask::STATE | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    traced.emit(&Event::Modified { qp: traced.qp, attr: &attr, mask });
    let seen = traced.seen();
    let names: Vec<_> =
        seen.iter().filter_map(|(phase, _, args)| args["name"].as_str().filter(|_| phase == "M")).collect();
    assert_eq!(names[1..], ["connections and events", "QP 0x000011 RC", "QP 0x000011 RC → 0x000012"]);
    assert_eq!(seen.last().unwrap().1, "RTR");
    assert_eq!(seen.last().unwrap().2["rq_psn"], 0);
    traced.emit(&Event::StateChanged { qp: traced.qp, state: QpState::Err });
    traced.emit(&Event::StateChanged { qp: traced.qp, state: QpState::Err });
    traced.emit(&Event::Destroyed(traced.qp));
    assert_eq!(traced.names(), ["E", "B ERR", "E"]);
}

#[test]
fn completion_ends_its_request_and_earlier_unsignaled() {
    let mut traced = Traced::new();
    traced.seen();
    traced.post(5, SendFlags::empty());
    traced.post(5, SendFlags::SIGNALED);
    traced.post(5, SendFlags::SIGNALED);
    (8..10).for_each(|psn| traced.send(psn, TxReason::First));
    traced.send(9, TxReason::Retransmission);
    traced.complete(5, WcStatus::Success);
    let ends: Vec<_> = traced.seen().into_iter().filter(|(phase, ..)| phase == "e").map(|(.., args)| args).collect();
    assert_eq!(ends.len(), 2);
    assert_eq!((&ends[0]["status"], &ends[0]["first_psn"]), (&"no completion requested".into(), &8.into()));
    assert_eq!((&ends[1]["status"], &ends[1]["retransmitted"]), (&"success".into(), &1.into()));
    traced.emit(&Event::SendsWithdrawn { qp: traced.qp, count: 1 });
    assert_eq!(traced.names(), ["e SEND 0x000011"]);
}

#[test]
fn rnr_wait_ends_with_the_next_request_packet() {
    let mut traced = Traced::new();
    traced.post(5, SendFlags::SIGNALED);
    traced.send(8, TxReason::First);
    traced.seen();
    let counts = RetryCounts { rnr_nak_retry_err: 1, ..RetryCounts::default() };
    traced.emit(&Event::Retried { qp: traced.qp, counts });
    traced.send(8, TxReason::Retransmission);
    assert_eq!(traced.names(), ["i RNR NAK received", "B RNR wait", "i → RC SEND_ONLY again", "E"]);
}

#[test]
fn open_slices_end_with_the_program() {
    let mut traced = Traced::new();
    traced.post(5, SendFlags::SIGNALED);
    traced.seen();
    traced.tracks.end(&mut traced.lines, Instant(9));
    assert_eq!(traced.names(), ["E", "e SEND 0x000011"]);
}

/// The format of a line.
mod lines {
    use super::super::*;
    use serde_json::{Value, json};

    fn line(phase: Phase, name: &str, args: &Args) -> Value {
        let mut lines = Lines::new(7);
        lines.put(phase, 9, Instant(1_234_567_008), ("cat", &name), args);
        let mut text = String::new();
        lines.swap(&mut text);
        assert_eq!(lines.len(), 0);
        let line = text.strip_suffix(",\n").unwrap();
        assert!(!line.contains('\n'));
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn line_is_valid_json_for_any_text() {
        let args = Args::default().number("n", 1u8).hex("x", u64::MAX).text("t", &"a \"b\" \\ \n c");
        assert_eq!(
            line(Phase::Instant, "na\tme \"q\" →", &args),
            json!({"ph": "i", "pid": 7, "tid": 9, "ts": 1_234_567.008, "cat": "cat", "name": "na me \"q\" →", "s": "t",
                "args": {"n": 1, "x": "0xffffffffffffffff", "t": "a \"b\" \\   c"}})
        );
        let slice = line(Phase::AsyncBegin(26), "SEND", &Args::default());
        assert_eq!((&slice["ph"], &slice["id2"], &slice["args"]), (&json!("b"), &json!({"local": "0x1a"}), &json!({})));
    }
}
