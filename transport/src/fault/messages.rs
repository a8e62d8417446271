//! Which message a packet belongs to: the requests of one direction of a queue pair, numbered as
//! they first appear.

use roxe_wire::opcode::Position;
use roxe_wire::{Header, Kind, PathMtu, Psn, Request};
use std::collections::VecDeque;

/// Messages that are remembered for retransmissions and answers.
const REMEMBERED: usize = 512;
/// A message that began more than this many PSNs ago is forgotten: further apart, PSNs cannot be
/// told apart.
const REACH: i32 = 1 << 22;

/// The beginning of a message.
#[derive(Clone, Copy, Debug)]
struct Start {
    psn: Psn,
    /// Bytes that a READ asks for; its answer takes one PSN per packet. 0 for everything else.
    read: u32,
}

/// The messages of one direction.
#[derive(Debug)]
pub(super) struct Messages {
    /// The newest ones.
    starts: VecDeque<Start>,
    /// Messages so far: the number of the newest one.
    count: u64,
    /// PSN after the newest packet.
    next: Psn,
}

impl Messages {
    pub(super) fn new() -> Self {
        Self { starts: VecDeque::with_capacity(REMEMBERED), count: 0, next: Psn::default() }
    }

    /// The message of a request, which is counted if it begins one. On a reliable connection, a
    /// packet behind a gap has no number: what is missing will come, and this packet again behind
    /// it. `mtu`: of the path, if known.
    pub(super) fn of_request(&mut self, header: &Header, mtu: Option<PathMtu>) -> Option<u64> {
        if let Kind::Ud { .. } = header.kind {
            // Every packet is a message, and PSNs of different senders have nothing to do with each
            // other.
            self.count += 1;
            return Some(self.count);
        }
        let psn = header.bth.psn;
        let (next, exact) = self.expected(mtu);
        let is_uc = matches!(header.kind, Kind::UcRequest(_));
        if self.count > 0 && psn.is_before(next) {
            return self.find(psn, mtu);
        }
        if self.count > 0 && psn != next && exact && !is_uc {
            return None;
        }
        self.next = psn.next();
        let begins = matches!(header.opcode().facts().position, Position::First | Position::Only);
        if begins || self.count == 0 {
            self.begin(Start { psn, read: read_len(header) });
        }
        Some(self.count)
    }

    /// The message that has this PSN, if it is remembered.
    pub(super) fn find(&self, psn: Psn, mtu: Option<PathMtu>) -> Option<u64> {
        let (next, exact) = self.expected(mtu);
        if exact && !psn.is_before(next) {
            return None;
        }
        let newer = self.starts.len() - self.starts.partition_point(|start| !start.psn.is_after(psn));
        (newer < self.starts.len()).then(|| self.count - newer as u64)
    }

    fn begin(&mut self, start: Start) {
        if self.starts.len() == REMEMBERED {
            self.starts.pop_front();
        }
        while self.starts.front().is_some_and(|old| !(0..REACH).contains(&start.psn.distance(old.psn))) {
            self.starts.pop_front();
        }
        self.starts.push_back(start);
        self.count += 1;
    }

    /// The PSN of the next request, and whether that is certain: how many PSNs a READ takes depends
    /// on the path MTU.
    fn expected(&self, mtu: Option<PathMtu>) -> (Psn, bool) {
        let Some(Start { psn, read: read @ 1.. }) = self.starts.back().copied() else { return (self.next, true) };
        match mtu {
            Some(mtu) => (psn.add(read.div_ceil(mtu.bytes())), true),
            None => (psn.next(), read <= PathMtu::Mtu256.bytes()),
        }
    }
}

/// Bytes that a READ asks for.
fn read_len(header: &Header) -> u32 {
    if let Some(Request::Read(reth)) = header.kind.request() { reth.dma_len } else { 0 }
}
