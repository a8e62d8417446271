//! Rules for CNPs.

use super::charge::{Card, Charges, Role, Rule};
use super::record::PacketRecord;
use roxe_wire::capture::Direction;
use roxe_wire::net::ECN;
use std::collections::VecDeque;

/// Minimum interval of CNPs of known cards, in nanoseconds.
const MIN_INTERVAL: u64 = 4_000;
/// Interval of CNPs in public models, in nanoseconds.
const MODEL_INTERVAL: u64 = 50_000;
/// Number of CNPs whose times are compared; software stamps all packets of one interrupt alike.
const COMPARED_CNPS: usize = 8;

/// The CNPs of a card, and counts of the packets to it, on which CNPs report marks.
#[derive(Debug)]
pub(super) struct Congestion {
    /// The card that sends the CNPs.
    notifier: Card,
    is_complete: bool,
    /// Packets from the other card.
    packets: usize,
    /// Packets among them that switches may mark.
    markable: usize,
    /// Packets among them that are marked.
    marked: usize,
    /// Newest CNPs: time and packet.
    newest: VecDeque<(u64, usize)>,
    pub charges: Charges,
}

impl Congestion {
    pub(super) fn new(notifier: Card, is_complete: bool) -> Self {
        let (newest, charges) = (VecDeque::new(), Charges::default());
        Self { notifier, is_complete, packets: 0, markable: 0, marked: 0, newest, charges }
    }

    /// Counts a packet to the notifier.
    pub(super) fn packet(&mut self, current: &PacketRecord) {
        self.packets += 1;
        self.markable += usize::from(current.net.traffic_class & ECN != 0 || current.is_marked);
        self.marked += usize::from(current.is_marked);
    }

    // clause: CNP-WHEN, CNP-INTERVAL
    pub(super) fn cnp(&mut self, current: &PacketRecord) {
        let (notifier, index) = (self.notifier, current.index);
        // A recording by the notifier itself shows every mark.
        let sees_marks = self.is_complete || current.direction == Some(Direction::Outbound);
        if self.packets > 0 && self.markable == 0 {
            let text = "a CNP although no packet of the peer allows switches to mark it (ECN 00)";
            self.charges.add(Rule::CnpUnmarked, notifier, Role::Responder, index, text).if_whole();
        } else if self.packets > 0 && self.marked == 0 {
            let text = "a CNP although no packet of the peer was marked";
            let charge = self.charges.add(Rule::CnpUnmarked, notifier, Role::Responder, index, text);
            charge.if_whole().advice_if(!sees_marks);
        }
        // A recording process stamps received packets when it reads them, several at once.
        if current.direction == Some(Direction::Inbound) {
            return;
        }
        let last = self.newest.back().map(|(time, _)| *time);
        self.newest.push_back((current.time, current.index));
        if self.newest.len() > COMPARED_CNPS {
            self.newest.pop_front();
        }
        let Some((first, packet)) = self.newest.front().copied().filter(|_| self.newest.len() == COMPARED_CNPS) else {
            return;
        };
        let took = current.time.saturating_sub(first);
        if took < MIN_INTERVAL * (COMPARED_CNPS as u64 - 1) {
            let text = format!("{COMPARED_CNPS} CNPs in {} us: there is no interval between them", took / 1000);
            self.charges.add(Rule::CnpPace, notifier, Role::Responder, index, text).with(packet);
            self.newest.clear();
        } else if last.is_some_and(|last| current.time.saturating_sub(last) < MODEL_INTERVAL) {
            let text = format!("{COMPARED_CNPS} CNPs in {} us; public models send one every 50 us", took / 1000);
            self.charges.add(Rule::CnpPace, notifier, Role::Responder, index, text).with(packet).advice();
            self.newest.clear();
        }
    }
}
