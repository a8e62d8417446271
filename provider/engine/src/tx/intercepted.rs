//! Sending with an interceptor: packets are judged by fault rules, recorded as they leave, and
//! changed as the rules demand. Packets that pass all rules leave in runs; others leave alone.

use super::{Batch, find_link, header, send};
use crate::engine::Engine;
use crate::flow_control::Key;
use crate::interceptor::{self, Fate, Held, Interceptor, Origin, PacketComment, Recording};
use crate::run::segment_header;
use roxe_base::clock;
use roxe_net::link::hop_limit;
use roxe_net::rcvbuf_cost::cost_of;
use roxe_net::udp::UdpLink;
use roxe_transport::fault::{Direction, PacketContext};
use roxe_transport::wr::Av;
use roxe_wire::capture::Direction::Outbound;
use roxe_wire::{Kind, NetHeader, Packet};
use std::sync::Arc;
use std::time::Duration;

impl Batch {
    pub(crate) fn flush_intercepted(
        &mut self,
        engine: &Engine,
        interceptor: &Interceptor,
        ordinal: u32,
        cached: &mut Option<Arc<UdpLink>>,
    ) {
        let fates = self.judge(interceptor, ordinal);
        let mut tx = InterceptedTx { engine, interceptor, recording: interceptor.record() };
        let mut at = 0;
        while let (Some(av), Some(fate)) = (self.av(at), fates.get(at)) {
            let untouched = fates.iter().skip(at).take_while(|fate| fate.verdict.is_pass()).count();
            at = match find_link(engine, av.sgid, cached) {
                None => at + 1,
                Some(link) if untouched > 0 => tx.send_run(self, at, untouched, link, &av),
                Some(link) => {
                    tx.send_with_fate(self, at, fate, link, &av);
                    at + 1
                }
            };
        }
    }

    /// Returns the fates of the packets, which are not sealed yet.
    fn judge(&self, interceptor: &Interceptor, ordinal: u32) -> Vec<Fate> {
        let parsed: Vec<_> = (0..self.packets.len()).map(|at| Packet::parse(self.packet(at)).ok()).collect();
        let seen = self.packets.iter().zip(&parsed).map(|(entry, packet)| {
            let peer = self.avs.get(entry.av)?.dgid;
            Some(PacketContext {
                dir: Direction::Tx,
                qpn: entry.note.qpn,
                ordinal,
                peer,
                at: Duration::ZERO,
                packet: packet.as_ref()?,
            })
        });
        interceptor.judge(seen)
    }

    fn packet(&self, at: usize) -> &[u8] {
        self.bytes_of(at..at + 1)
    }

    fn packet_mut(&mut self, at: usize) -> &mut [u8] {
        let bytes = self.packets.get(at).and_then(|entry| self.bytes.get_mut(entry.start..entry.start + entry.len));
        bytes.unwrap_or_default()
    }

    fn origin(&self, at: usize) -> Option<Origin> {
        self.packets.get(at).map(|entry| Origin::Sent(entry.note))
    }
}

struct InterceptedTx<'a> {
    engine: &'a Engine,
    interceptor: &'a Interceptor,
    recording: Option<Recording<'a>>,
}

impl InterceptedTx<'_> {
    /// Sends the run at packet `at`, of at most `untouched` packets; returns the start of the next.
    fn send_run(&mut self, batch: &mut Batch, at: usize, untouched: usize, link: &UdpLink, av: &Av) -> usize {
        let run = batch.run_from(at, untouched.min(link.max_segments(av.dgid)));
        let net = header(self.engine, link, av);
        batch.seal(run.clone(), &net);
        let mark = self.recording.as_ref().map(Recording::mark);
        for (index, at) in (0..).zip(run.clone()) {
            if let Some(origin) = batch.origin(at) {
                self.record(&segment_header(&net, index), batch.packet(at), &PacketComment { origin, fate: None });
            }
        }
        if batch.send_run(run.clone(), link, &net, self.engine.counters()) {
            return run.end;
        }
        // The packets leave one by one, but were recorded as one run.
        self.recording.iter_mut().zip(mark).for_each(|(recording, mark)| recording.rewind(mark));
        at
    }

    /// Applies `fate` to packet `at` and sends it alone.
    fn send_with_fate(&mut self, batch: &mut Batch, at: usize, fate: &Fate, link: &Arc<UdpLink>, av: &Av) {
        let verdict = fate.verdict;
        interceptor::count(self.engine.counters(), &verdict);
        let net = interceptor::marked(header(self.engine, link, av), &verdict);
        batch.seal(at..at + 1, &net);
        if verdict.drop || verdict.corrupt.is_some() {
            self.return_credit(&net, batch.packet(at));
        }
        if let Some(corruption) = verdict.corrupt {
            corruption.apply(batch.packet_mut(at));
        }
        let (bytes, Some(origin)) = (batch.packet(at), batch.origin(at)) else { return };
        if verdict.drop {
            if self.recording.is_some() {
                self.record(&net, bytes, &PacketComment::new(origin, fate));
            }
            return;
        }
        let parsed = Packet::parse(bytes).ok();
        if let Some(forged) = interceptor::forged(&net, parsed.as_ref(), &verdict) {
            let packet_comment = PacketComment::new(origin, &fate.of_forged());
            self.send_or_hold(&net, &forged, verdict.delay, packet_comment, link);
        }
        self.send_or_hold(&net, bytes, verdict.delay, PacketComment::new(origin, fate), link);
        for _ in 0..verdict.copies {
            let packet_comment = PacketComment::new(origin, &fate.of_copy());
            self.send_or_hold(&net, bytes, verdict.delay + verdict.copies_after, packet_comment, link);
        }
    }

    fn send_or_hold(
        &mut self,
        net: &NetHeader,
        bytes: &[u8],
        delay: Duration,
        packet_comment: PacketComment,
        link: &UdpLink,
    ) {
        if delay.is_zero() {
            return self.send_alone(net, bytes, &packet_comment, link);
        }
        let held = Held::Outgoing { net: *net, bytes: bytes.to_vec(), packet_comment };
        self.engine.hold(self.interceptor, clock::now().after(delay), held);
    }

    fn send_alone(&mut self, net: &NetHeader, bytes: &[u8], packet_comment: &PacketComment, link: &UdpLink) {
        self.record(net, bytes, packet_comment);
        // A single packet needs no segmentation, which the link could refuse.
        send(link, net, bytes, bytes.len(), 1, self.engine.counters());
    }

    fn record(&mut self, net: &NetHeader, bytes: &[u8], packet_comment: &PacketComment) {
        if let Some(recording) = &mut self.recording {
            recording.packet(
                Outbound,
                &NetHeader { hop_limit: hop_limit(net.hop_limit), ..*net },
                bytes,
                packet_comment,
            );
        }
    }

    /// Returns the credit for a datagram that will never be received.
    fn return_credit(&self, net: &NetHeader, bytes: &[u8]) {
        let Ok(Packet { header, payload }) = Packet::parse(bytes) else { return };
        if matches!(header.kind, Kind::Ud { .. } | Kind::UcRequest(_)) {
            let bytes = cost_of(&header.kind, payload.len());
            self.engine.flows.credit(Key::of(net.dst, header.bth.dest_qpn), bytes, clock::now());
        }
    }
}

impl Engine {
    pub(crate) fn send_held(
        &self,
        interceptor: &Interceptor,
        net: &NetHeader,
        bytes: &[u8],
        packet_comment: &PacketComment,
    ) {
        if let Some(link) = find_link(self, net.src, &mut None) {
            let mut tx = InterceptedTx { engine: self, interceptor, recording: interceptor.record() };
            tx.send_alone(net, bytes, packet_comment, link);
        }
    }
}
