//! Checksums of posted buffers, for the checker: taken when a request is posted and again before
//! the card writes the buffer or completes the request, to detect that the program changed it in
//! between. Empty unless the checker is on.

use roxe_memory::guard::own_cells;
use roxe_memory::region::PdId;
use roxe_memory::table::MemoryTable;
use roxe_transport::cx::Side;
use roxe_transport::wr::{Cqe, RecvRequest, SendData, SendFlags, SendOp, SendRequest, Sge, WcStatus};
use std::collections::VecDeque;

/// Length of a sampled piece in bytes.
const PIECE_LEN: u32 = 512;
/// Maximum number of pieces per request; a longer request is sampled to bound the cost.
const MAX_PIECES: u32 = 16;
/// Maximum number of watched requests per queue.
const MAX_WATCHED: usize = 4096;

/// The card's use of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BufferUse {
    /// Read by the card, which reports when it is done.
    Source,
    /// Written by the card.
    Sink,
    /// Not checked.
    Other,
}

#[derive(Debug)]
struct Watched {
    wr_id: u64,
    signaled: bool,
    buffer_use: BufferUse,
    sges: Vec<Sge>,
    /// Bytes of the list that the card may use.
    reach: u32,
    sum: Option<u64>,
}

/// Watched requests of one queue pair, oldest first.
#[derive(Debug, Default)]
pub(super) struct Watch {
    sends: VecDeque<Watched>,
    receives: VecDeque<Watched>,
}

impl Watch {
    pub(super) fn watch_send(
        &mut self,
        (memory, pd): (&MemoryTable, PdId),
        request: &SendRequest<'_>,
        signals_all: bool,
    ) {
        let signaled = signals_all || request.flags.contains(SendFlags::SIGNALED);
        let buffer_use = use_of(&request.op, signaled);
        let sges = if let SendData::Sges(sges) = request.data { sges.to_vec() } else { Vec::new() };
        let sum = if buffer_use == BufferUse::Other { None } else { sum(memory, pd, &sges, u32::MAX) };
        push(&mut self.sends, Watched { wr_id: request.wr_id, signaled, buffer_use, sges, reach: u32::MAX, sum });
    }

    /// Watches a receive of which a message fills at most the first `reach` bytes; the program may
    /// change the bytes beyond them, as buffer pools do.
    pub(super) fn watch_recv(&mut self, (memory, pd): (&MemoryTable, PdId), request: &RecvRequest<'_>, reach: u32) {
        let (wr_id, sges, sum) = (request.wr_id, request.sges.to_vec(), sum(memory, pd, request.sges, reach));
        push(&mut self.receives, Watched { wr_id, signaled: true, buffer_use: BufferUse::Sink, sges, reach, sum });
    }

    /// Called before the card writes the first bytes of a list. Returns the `wr_id` if the buffer
    /// changed since it was posted.
    pub(super) fn writes(&mut self, (memory, pd): (&MemoryTable, PdId), side: Side, sges: &[Sge]) -> Option<u64> {
        let is_match = |watched: &&mut Watched| {
            watched.buffer_use == BufferUse::Sink && watched.sum.is_some() && watched.sges == sges
        };
        let watched = self.queue(side).iter_mut().find(is_match)?;
        // The card writes the buffer from now on.
        let before = watched.sum.take();
        (sum(memory, pd, sges, watched.reach)? != before?).then_some(watched.wr_id)
    }

    /// Ends the watch of a request, for a send also of the sends before it. Returns true if the
    /// buffer of the request changed since it was posted.
    pub(super) fn on_completed(&mut self, (memory, pd): (&MemoryTable, PdId), side: Side, cqe: &Cqe) -> bool {
        let failed = cqe.status != WcStatus::Success;
        let is_match = |watched: &Watched| watched.wr_id == cqe.wr_id && (watched.signaled || failed);
        let queue = self.queue(side);
        let Some(at) = queue.iter().position(is_match) else { return false };
        let watched = match side {
            Side::Send => queue.drain(..=at).next_back(),
            Side::Recv => queue.remove(at),
        };
        watched.is_some_and(|watched| {
            let before = watched.sum.filter(|_| watched.buffer_use == BufferUse::Source && !failed);
            before.is_some_and(|before| sum(memory, pd, &watched.sges, watched.reach).is_some_and(|now| now != before))
        })
    }

    pub(super) fn take_back(&mut self, count: u32) {
        let left = self.sends.len().saturating_sub(count as usize);
        self.sends.truncate(left);
    }

    fn queue(&mut self, side: Side) -> &mut VecDeque<Watched> {
        match side {
            Side::Send => &mut self.sends,
            Side::Recv => &mut self.receives,
        }
    }
}

fn push(queue: &mut VecDeque<Watched>, watched: Watched) {
    if queue.len() == MAX_WATCHED {
        queue.pop_front();
    }
    queue.push_back(watched);
}

fn use_of(op: &SendOp, signaled: bool) -> BufferUse {
    use SendOp::{AtomicWrite, Read, Send, SendImm, SendInvalidate, Write, WriteImm};
    match op {
        Send | SendImm(_) | SendInvalidate(_) | Write { .. } | WriteImm { .. } | AtomicWrite { .. } if signaled => {
            BufferUse::Source
        }
        Read { .. } => BufferUse::Sink,
        _ => BufferUse::Other,
    }
}

/// Returns the checksum of the first `reach` bytes of a list, sampled if they are many; `None` if
/// there are none, or they cannot be read.
fn sum(memory: &MemoryTable, pd: PdId, sges: &[Sge], reach: u32) -> Option<u64> {
    let total = sges.iter().try_fold(0u32, |total, sge| total.checked_add(sge.length))?.min(reach);
    if total == 0 {
        return None;
    }
    let regions = memory.hold();
    let pieces = total.div_ceil(PIECE_LEN).min(MAX_PIECES);
    let mut sum = 0xcbf2_9ce4_8422_2325;
    for piece in 0..pieces {
        // Pieces are spread evenly from the first byte to the last.
        let room = u64::from(total.saturating_sub(PIECE_LEN));
        let last = u64::from(pieces - 1).max(1);
        let at = u32::try_from(room * u64::from(piece) / last).ok()?;
        let mut bytes = [0; PIECE_LEN as usize];
        let len = PIECE_LEN.min(total) as usize;
        let part = bytes.get_mut(..len)?;
        regions.gather(pd, sges, at, own_cells(part)).ok()?;
        for word in bytes.as_chunks::<8>().0.iter().take(len.div_ceil(8)) {
            sum = (sum ^ u64::from_ne_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, PAGE_SIZE, Pages};
    use roxe_transport::wr::Access;

    #[test]
    fn changed_buffer_is_reported_at_completion_or_write() {
        let (pages, pd) = (Pages::new(1), testing::pd());
        let mr = pd.register(pages.addr(), PAGE_SIZE, pages.addr(), Access::LOCAL_WRITE).unwrap();
        let table: &MemoryTable = pd.context().memory();
        let sges = [Sge { addr: pages.addr(), length: 100, lkey: mr.lkey() }];
        let own = (table, pd.id());
        let cqe = Cqe { wr_id: 5, ..Cqe::default() };
        for (changed, byte) in [(false, 0), (true, 1)] {
            let mut watch = Watch::default();
            let (op, data) = (SendOp::Send, SendData::Sges(&sges));
            let request = SendRequest { wr_id: 5, op, flags: SendFlags::SIGNALED, data, ud: None };
            watch.watch_send(own, &request, false);
            watch.watch_recv(own, &RecvRequest { wr_id: 6, sges: &sges }, u32::MAX);
            table.hold().scatter(pd.id(), &sges, 99, &[byte]).unwrap();
            assert_eq!(watch.on_completed(own, Side::Send, &cqe), changed);
            assert!(!watch.on_completed(own, Side::Send, &cqe), "no longer watched");
            assert_eq!(watch.writes(own, Side::Recv, &sges), changed.then_some(6));
            assert_eq!(watch.writes(own, Side::Recv, &sges), None, "the card itself wrote since");
        }
    }

    #[test]
    fn receive_bytes_beyond_reach_may_change() {
        let (pages, pd) = (Pages::new(1), testing::pd());
        let mr = pd.register(pages.addr(), PAGE_SIZE, pages.addr(), Access::LOCAL_WRITE).unwrap();
        let table: &MemoryTable = pd.context().memory();
        let sges = [Sge { addr: pages.addr(), length: 100, lkey: mr.lkey() }];
        for (reach, expected) in [(100, Some(6)), (99, None)] {
            let mut watch = Watch::default();
            table.hold().scatter(pd.id(), &sges, 99, &[0]).unwrap();
            watch.watch_recv((table, pd.id()), &RecvRequest { wr_id: 6, sges: &sges }, reach);
            table.hold().scatter(pd.id(), &sges, 99, &[1]).unwrap();
            assert_eq!(watch.writes((table, pd.id()), Side::Recv, &sges), expected);
        }
    }
}
