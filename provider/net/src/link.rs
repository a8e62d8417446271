//! Types shared by all links: where a run of packets came from, the result of sending one, and
//! [`TxQueue`], where runs wait for room in a send buffer.
//!
//! There is no trait over the links, because they share no operation: [`crate::udp::UdpLink`]
//! copies runs between buffers, a ring ([`crate::shm`]) lends its memory, [`crate::raw`] moves
//! batches of frames.

use crate::sys::SendRoom;
use roxe_base::lock::{Mutex, rank};
use roxe_wire::{Gid, NetHeader, Qpn, ROCE_PORT};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum UDP payload of one send or receive in bytes: that of an IPv4 packet (65,535 − 20 − 8).
pub const MAX_BYTES: usize = 65_507;
/// Maximum number of packets of one send. Kernels before 6.9 refuse more.
pub const MAX_SEGMENTS: usize = 64;
/// TTL of packets whose address vector says 0 (unset) or 1 (would not leave the host), as in
/// hardware.
pub const HOP_LIMIT: u8 = 64;
/// Maximum number of bytes that wait: a batch of 128 KB of each of eight threads that find the
/// socket full.
const QUEUE_LIMIT: usize = 1 << 20;

/// Returns the hop limit on the wire for `requested` in an address vector.
// clause: IP-TTL
pub const fn hop_limit(requested: u8) -> u8 {
    if requested > 1 { requested } else { HOP_LIMIT }
}

/// Source and format of a received run of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxMeta {
    /// Bytes received.
    pub len: usize,
    /// Bytes per packet; only the last one may be shorter. At least 1.
    pub segment: usize,
    /// Index of the first packet in the run that the sender passed to its kernel.
    pub first_index: u16,
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// UDP source port.
    pub src_port: u16,
    /// IPv4 TOS or IPv6 traffic class, with ECN.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// True for packets from a ring, which have no ICRC and whose datagrams return no credit.
    pub by_ring: bool,
}

impl RxMeta {
    /// Returns the metadata of a single packet of `len` bytes with default header fields.
    #[inline]
    pub fn alone(len: usize, src: Gid, dst: Gid) -> Self {
        Self {
            len,
            segment: len.max(1),
            first_index: 0,
            src,
            dst,
            src_port: ROCE_PORT,
            traffic_class: 0,
            hop_limit: HOP_LIMIT,
            by_ring: false,
        }
    }

    /// Returns the number of packets.
    pub fn packets(&self) -> u64 {
        self.packets_in(self.len)
    }

    /// Returns the number of packets in `len` bytes of the run.
    pub fn packets_in(&self, len: usize) -> u64 {
        // Avoids a division for the common single packet.
        if (1..=self.segment).contains(&len) { 1 } else { len.div_ceil(self.segment) as u64 }
    }
}

/// Reason why a run was not sent.
#[derive(Debug)]
pub enum SendError {
    /// The kernel refused to segment the run. Its packets leave one by one, as
    /// [`UdpLink::max_segments`](crate::udp::UdpLink::max_segments) demands for a while.
    NoSegments,
    /// The send buffer is full.
    Full,
    /// The send buffer and the [`TxQueue`] are full; the packets are dropped.
    QueueFull,
    /// The packets are dropped, as if lost in the network.
    Lost,
}

/// Result of sending a run that was not dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Passed to the kernel.
    Sent,
    /// Waits for room in the send buffer; to be counted when it leaves.
    Queued,
}

/// Destination and format of a run to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Destination; `None` for an Ethernet frame, whose header has it.
    pub to: Option<NetHeader>,
    /// Bytes per packet; only the last one may be shorter. At least 1.
    pub segment: usize,
}

impl Run {
    /// Returns the number of packets in `len` bytes.
    pub fn packets(&self, len: usize) -> u64 {
        len.div_ceil(self.segment.max(1)) as u64
    }
}

/// Runs that wait for room in the send buffer of a socket, in order, and the queue pairs waiting
/// for them.
///
/// Sends never block, because the sender holds locks that receiving needs. A run that finds no room
/// is copied here, up to `QUEUE_LIMIT`, and [`SendRoom`] wakes the background thread when the
/// socket has room. Queue pairs check the queue before they build packets, so a slow interface
/// throttles them without loss. On loopback no send buffer fills, and the lock is never taken.
#[derive(Debug, Default)]
pub struct TxQueue {
    has_runs: AtomicBool,
    state: Mutex<rank::TxQueue, State>,
    room: Option<Arc<SendRoom>>,
}

#[derive(Debug, Default)]
struct State {
    runs: VecDeque<(Run, Box<[u8]>)>,
    bytes: usize,
    waiters: Vec<Qpn>,
    /// Total number of queued runs that were sent.
    sent_runs: u64,
    /// True if no run has left for long: datagrams are dropped until one leaves.
    is_stalled: bool,
}

impl TxQueue {
    /// Creates a queue for sockets that `room` watches.
    pub(crate) fn new(room: &Arc<SendRoom>) -> Self {
        Self { room: Some(Arc::clone(room)), ..Self::default() }
    }

    /// Returns true if no run waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.has_runs.load(Ordering::Acquire)
    }

    /// Sends a run with `send`, which does not block, or queues it after others. `socket` is the
    /// one that `send` uses.
    #[inline]
    pub(crate) fn send(
        &self,
        run: Run,
        bytes: &[u8],
        socket: impl Fn(&Run) -> RawFd,
        send: impl Fn(&Run, &[u8]) -> Result<(), SendError>,
    ) -> Result<Taken, SendError> {
        if self.is_empty() {
            match send(&run, bytes) {
                Err(SendError::Full) => {}
                other => return other.map(|()| Taken::Sent),
            }
        }
        self.send_or_enqueue(run, bytes, socket, send)
    }

    #[cold]
    fn send_or_enqueue(
        &self,
        run: Run,
        bytes: &[u8],
        socket: impl Fn(&Run) -> RawFd,
        send: impl Fn(&Run, &[u8]) -> Result<(), SendError>,
    ) -> Result<Taken, SendError> {
        let mut state = self.state.lock();
        if state.is_stalled || state.bytes + bytes.len() > QUEUE_LIMIT {
            return Err(SendError::QueueFull);
        }
        if state.runs.is_empty() {
            // There may be room by now; if not, the socket is watched before the run is queued.
            match send(&run, bytes) {
                Err(SendError::Full) => self.watch(socket(&run))?,
                other => return other.map(|()| Taken::Sent),
            }
        }
        state.bytes += bytes.len();
        state.runs.push_back((run, bytes.into()));
        self.has_runs.store(true, Ordering::Release);
        Ok(Taken::Queued)
    }

    fn watch(&self, socket: RawFd) -> Result<(), SendError> {
        match &self.room {
            Some(room) => room.watch(socket).map_err(|_| SendError::Lost),
            None => Ok(()),
        }
    }

    /// Sends queued runs by `send` as far as there is room and reports each result. Returns the
    /// waiting queue pairs once the queue is empty. The lock is held so that no run overtakes.
    pub(crate) fn drain(
        &self,
        socket: impl Fn(&Run) -> RawFd,
        send: impl Fn(&Run, &[u8]) -> Result<(), SendError>,
        mut report: impl FnMut(&Run, usize, Result<(), SendError>),
    ) -> Vec<Qpn> {
        let mut state = self.state.lock();
        while let Some((run, bytes)) = state.runs.front() {
            let mut result = send(run, bytes);
            if let Err(SendError::Full) = result {
                match self.watch(socket(run)) {
                    Ok(()) => return Vec::new(),
                    // Without a watch the queue would never be drained.
                    Err(lost) => result = Err(lost),
                }
            }
            let len = bytes.len();
            report(run, len, result);
            state.runs.pop_front();
            state.bytes -= len;
            state.sent_runs += 1;
            state.is_stalled = false;
        }
        self.has_runs.store(false, Ordering::Release);
        std::mem::take(&mut state.waiters)
    }

    /// Registers `qpn` to be served when the queue is empty. Returns the number of runs sent so
    /// far; `None` if the queue is empty now.
    pub fn wait(&self, qpn: Qpn) -> Option<u64> {
        let mut state = self.state.lock();
        if state.runs.is_empty() {
            return None;
        }
        state.waiters.push(qpn);
        Some(state.sent_runs)
    }

    /// Returns the total number of queued runs that were sent.
    pub fn sent_runs(&self) -> u64 {
        self.state.lock().sent_runs
    }

    /// Marks the queue as stalled: datagrams are dropped until a run leaves, as they are unreliable
    /// anyway.
    pub fn set_stalled(&self) {
        let mut state = self.state.lock();
        state.is_stalled = !state.runs.is_empty();
    }

    /// Returns true if datagrams should be dropped rather than wait.
    pub fn is_stalled(&self) -> bool {
        !self.is_empty() && self.state.lock().is_stalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    const RUN: Run = Run { to: None, segment: 4 };

    /// A socket with room for some sends.
    #[derive(Default)]
    struct Wire {
        room: Cell<usize>,
        sent: RefCell<Vec<u8>>,
    }

    impl Wire {
        fn send(&self, _: &Run, bytes: &[u8]) -> Result<(), SendError> {
            let room = self.room.get().checked_sub(1).ok_or(SendError::Full)?;
            self.room.set(room);
            self.sent.borrow_mut().push(bytes[0]);
            Ok(())
        }
    }

    fn send(queue: &TxQueue, wire: &Wire, byte: u8) -> Result<Taken, SendError> {
        queue.send(RUN, &[byte; 8], |_| -1, |run, bytes| wire.send(run, bytes))
    }

    fn drain(queue: &TxQueue, wire: &Wire) -> (Vec<Qpn>, u64) {
        let mut packets = 0;
        let ready = queue.drain(
            |_| -1,
            |run, bytes| wire.send(run, bytes),
            |run, len, result| packets += result.map_or(0, |()| run.packets(len)),
        );
        (ready, packets)
    }

    #[test]
    fn runs_without_room_leave_later_in_order() {
        let (queue, wire) = (TxQueue::default(), Wire::default());
        wire.room.set(1);
        let taken: Vec<_> = (1..=3).map(|n| send(&queue, &wire, n).unwrap()).collect();
        assert_eq!(taken, [Taken::Sent, Taken::Queued, Taken::Queued]);
        wire.room.set(1);
        assert_eq!(send(&queue, &wire, 4).unwrap(), Taken::Queued, "there is room, but others wait for it");
        assert_eq!(drain(&queue, &wire), (vec![], 2));
        wire.room.set(9);
        assert_eq!(drain(&queue, &wire), (vec![], 4));
        assert_eq!(send(&queue, &wire, 5).unwrap(), Taken::Sent);
        assert_eq!(*wire.sent.borrow(), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn waiting_queue_pairs_are_served_when_queue_is_empty() {
        let (queue, wire, qpn) = (TxQueue::default(), Wire::default(), Qpn::new(7));
        assert_eq!(queue.wait(qpn), None, "no run waits");
        (1..=2).for_each(|n| assert_eq!(send(&queue, &wire, n).unwrap(), Taken::Queued));
        assert_eq!(queue.wait(qpn), Some(0));
        wire.room.set(1);
        assert_eq!((drain(&queue, &wire).0, queue.sent_runs()), (vec![], 1));
        wire.room.set(1);
        assert_eq!((drain(&queue, &wire).0, queue.sent_runs()), (vec![qpn], 2));
        assert!(queue.is_empty());
    }

    #[test]
    fn queue_is_bounded_and_refuses_while_stalled() {
        let (queue, wire) = (TxQueue::default(), Wire::default());
        let count = (0..=QUEUE_LIMIT).take_while(|_| send(&queue, &wire, 1).is_ok()).count();
        assert_eq!(count, QUEUE_LIMIT / 8);
        assert!(matches!(send(&queue, &wire, 2), Err(SendError::QueueFull)));
        wire.room.set(1);
        drain(&queue, &wire);
        assert!(send(&queue, &wire, 2).is_ok());
        queue.set_stalled();
        wire.room.set(0);
        drain(&queue, &wire);
        assert!(queue.is_stalled() && matches!(send(&queue, &wire, 3), Err(SendError::QueueFull)));
        wire.room.set(count + 1);
        drain(&queue, &wire);
        assert!(!queue.is_stalled() && queue.is_empty());
    }

    #[test]
    fn queued_run_refused_by_system_is_dropped_and_reported() {
        let (queue, wire) = (TxQueue::default(), Wire::default());
        send(&queue, &wire, 1).unwrap();
        let mut lost = 0;
        queue.drain(
            |_| -1,
            |_, _| Err(SendError::Lost),
            |run, len, result| {
                lost += if result.is_err() { run.packets(len) } else { 0 };
            },
        );
        assert_eq!((lost, queue.is_empty()), (2, true));
    }
}
