//! Receiving with an interceptor: packets are judged by fault rules, recorded as they arrived, then
//! changed as the rules demand.

use crate::engine::Engine;
use crate::gsi::GSI_ORDINAL;
use crate::interceptor::{self, Fate, Held, Incoming, Interceptor, Origin, PacketComment};
use crate::queue_pair::QueuePair;
use crate::run::{Run, header_of, segment_header};
use crate::rx_state::RxState;
use roxe_base::clock;
use roxe_net::link::RxMeta;
use roxe_transport::fault::{Direction, PacketContext, Verdict};
use roxe_transport::time::Instant;
use roxe_wire::capture::Direction::Inbound;
use roxe_wire::{NetHeader, Packet, ParseError, Qpn, icrc};
use std::sync::Arc;
use std::time::Duration;

struct Arrival<'a> {
    bytes: &'a [u8],
    index: u16,
    /// Network header. Its identification is solved from the ICRC, or is the expected one if the
    /// ICRC is wrong.
    net: NetHeader,
    is_whole: bool,
    packet: Result<Packet<'a>, ParseError>,
}

impl<'a> Arrival<'a> {
    fn new(meta: &RxMeta, index: u16, bytes: &'a [u8]) -> Self {
        let likely = segment_header(&header_of(meta, index), index);
        let ident = icrc::solve_ident(&likely, bytes, likely.ident);
        let net = NetHeader { ident: ident.unwrap_or(likely.ident), ..likely };
        Self { bytes, index, net, is_whole: ident.is_some(), packet: Packet::parse(bytes) }
    }

    fn all(run: Run<'a>) -> Vec<Self> {
        run.packets().map(|(index, bytes)| Self::new(run.meta, index, bytes)).collect()
    }

    fn origin(&self, qpn: Qpn) -> Origin {
        match self.packet {
            Err(error) => Origin::Malformed(qpn, error),
            Ok(_) if !self.is_whole => Origin::Damaged(qpn),
            Ok(_) => Origin::Received(qpn),
        }
    }
}

/// QPN, and ordinal in the process.
type Name = (Qpn, u32);

impl Interceptor {
    /// Returns the fates of packets for `qp`. Damaged packets pass: their headers are not reliable.
    fn judge_arrivals(&self, (qpn, ordinal): Name, arrivals: &[Arrival<'_>]) -> Vec<Fate> {
        self.judge(arrivals.iter().map(|arrival| {
            let peer = arrival.net.src;
            let packet = arrival.packet.as_ref().ok().filter(|_| arrival.is_whole)?;
            Some(PacketContext { dir: Direction::Rx, qpn, ordinal, peer, at: Duration::ZERO, packet })
        }))
    }

    fn record_arrivals(&self, qpn: Qpn, arrivals: &[Arrival<'_>], fates: &[Fate]) {
        let Some(mut recording) = self.record() else { return };
        for (arrival, fate) in arrivals.iter().zip(fates) {
            let packet_comment = PacketComment::new(arrival.origin(qpn), fate);
            recording.packet(Inbound, &arrival.net, arrival.bytes, &packet_comment);
        }
    }

    fn record_forged(&self, qpn: Qpn, net: &NetHeader, bytes: &[u8], fate: &Fate) {
        let Some(mut recording) = self.record() else { return };
        recording.packet(Inbound, net, bytes, &PacketComment::new(Origin::Received(qpn), &fate.of_forged()));
    }

    pub(crate) fn record_unknown(&self, qpn: Qpn, run: Run<'_>) {
        let Some(mut recording) = self.record() else { return };
        for arrival in Arrival::all(run) {
            let origin = if arrival.is_whole { Origin::Unknown(qpn) } else { Origin::Damaged(qpn) };
            recording.packet(Inbound, &arrival.net, arrival.bytes, &PacketComment { origin, fate: None });
        }
    }
}

impl Engine {
    /// Delivers a run to its queue pair (`None`: queue pair 1) through `interceptor`.
    pub(crate) fn deliver_intercepted(
        &self,
        interceptor: &Interceptor,
        state: &mut RxState,
        qp: Option<&Arc<dyn QueuePair>>,
        run: Run<'_>,
        now: Instant,
    ) {
        let arrivals = Arrival::all(run);
        let name = qp.map_or((Qpn::GSI, GSI_ORDINAL), |qp| (qp.qpn(), qp.ordinal()));
        let fates = interceptor.judge_arrivals(name, &arrivals);
        interceptor.record_arrivals(name.0, &arrivals, &fates);
        if fates.iter().all(|fate| fate.verdict.is_pass()) {
            return match qp {
                Some(qp) => self.deliver_to_qp(state, qp, run, now),
                None => self.admit_mads(state, run),
            };
        }
        // Packets may have arrived after `now`, which was read before they were received.
        let arrived = clock::now();
        for (arrival, fate) in arrivals.iter().zip(&fates) {
            let verdict = fate.verdict;
            interceptor::count(self.counters(), &verdict);
            if (verdict.drop || verdict.corrupt.is_some())
                && let (Some(qp), Ok(packet)) = (qp, &arrival.packet)
            {
                qp.return_credit(packet, &arrival.net, &state.tools());
            }
            let mut packets = Vec::new();
            if let Some(bytes) = interceptor::forged(&arrival.net, arrival.packet.as_ref().ok(), &verdict) {
                interceptor.record_forged(name.0, &arrival.net, &bytes, fate);
                let meta = RxMeta { len: bytes.len(), segment: bytes.len(), first_index: arrival.index, ..*run.meta };
                packets.push((verdict.delay, Incoming { qpn: name.0, meta, bytes, rnr: false, is_copy: true }));
            }
            if !verdict.drop {
                let packet = spoil(run.meta, arrival, name.0, &verdict);
                let copies = (0..verdict.copies).map(|_| Incoming { is_copy: true, ..packet.clone() });
                let copies: Vec<_> = copies.map(|copy| (verdict.delay + verdict.copies_after, copy)).collect();
                packets.push((verdict.delay, packet));
                packets.extend(copies);
            }
            for (delay, packet) in packets {
                if delay.is_zero() {
                    self.deliver_one(state, qp, &packet, now);
                } else {
                    self.hold(interceptor, arrived.after(delay), Held::Incoming(packet));
                }
            }
        }
    }

    fn deliver_one(&self, state: &mut RxState, qp: Option<&Arc<dyn QueuePair>>, packet: &Incoming, now: Instant) {
        let Incoming { meta, bytes, rnr, is_copy, .. } = packet;
        let run = Run { meta, bytes, index: meta.first_index };
        let Some(qp) = qp else { return self.admit_mads(state, run) };
        let mut tools = state.tools();
        tools.no_receives = *rnr;
        if *is_copy {
            // A copy consumed no credit of its sender.
            tools.locals = &[];
        }
        let outcome = qp.receive(run, &mut tools, now);
        state.touch(qp, outcome);
    }

    /// Releases packets that are due by `until`. Returns true if there were any.
    pub(crate) fn release_held(
        &self,
        interceptor: &Interceptor,
        state: &mut RxState,
        until: Instant,
        now: Instant,
    ) -> bool {
        let mut found = false;
        while let Some((_, held)) = interceptor.delayed.pop_due(until) {
            found = true;
            match held {
                Held::Outgoing { net, bytes, packet_comment } => {
                    self.send_held(interceptor, &net, &bytes, &packet_comment)
                }
                Held::Incoming(packet) if packet.qpn == Qpn::GSI => self.deliver_one(state, None, &packet, now),
                Held::Incoming(packet) => {
                    if let Some(qp) = self.table.get(packet.qpn) {
                        self.deliver_one(state, Some(&qp), &packet, now);
                    }
                }
            }
        }
        found
    }
}

fn spoil(meta: &RxMeta, arrival: &Arrival<'_>, qpn: Qpn, verdict: &Verdict) -> Incoming {
    let (mut bytes, len) = (arrival.bytes.to_vec(), arrival.bytes.len());
    if let Some(corruption) = verdict.corrupt {
        corruption.apply(&mut bytes);
    }
    let traffic_class = interceptor::marked(arrival.net, verdict).traffic_class;
    let meta = RxMeta { len, segment: len.max(1), first_index: arrival.index, traffic_class, ..*meta };
    Incoming { qpn, meta, bytes, rnr: verdict.rnr, is_copy: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::private_engine;
    use roxe_base::config::config;
    use roxe_wire::{Bth, Header, Kind, Psn, Request, SendTail};
    use std::process::Command;

    const DELAY: Duration = Duration::from_millis(5);

    /// The rules of a process are read once, so the test is a process of its own.
    #[test]
    fn delay_begins_when_a_packet_has_arrived() {
        let this = "rx::intercepted::tests::process_with_delay";
        let mut program = Command::new(std::env::current_exe().unwrap());
        let output = program.args(["--exact", this]).env("ROXE_FAULTS", "delay rx by=5ms").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }

    #[test]
    fn process_with_delay() {
        let config = config().unwrap();
        if config.faults.is_none() {
            return;
        }
        let (engine, interceptor) = (private_engine(config), Interceptor::open(config, "roxe0").unwrap().unwrap());
        let send = Kind::RcRequest(Request::SendOnly(SendTail::Plain));
        let header = Header { bth: Bth::new(Qpn::GSI, Psn::new(1)), kind: send };
        let mut bytes = vec![0; header.padded_len(0) + icrc::LEN];
        header.emit(0, &mut bytes[..header.padded_len(0)]).unwrap();
        let (here, start) = (roxe_wire::Gid::default(), clock::now());
        let meta = RxMeta::alone(bytes.len(), here, here);
        icrc::seal(&header_of(&meta, 0), &mut bytes);
        let run = Run { meta: &meta, bytes: &bytes, index: 0 };
        // The visit has read the clock a second before the packet arrived.
        let early = Instant(start.0 - Duration::from_secs(1).as_nanos() as u64);
        engine.deliver_intercepted(&interceptor, &mut engine.rx.lock().state, None, run, early);
        assert!(interceptor.delayed.next().unwrap() >= start.after(DELAY));
    }
}
