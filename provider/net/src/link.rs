//! Runs of equal-sized packets, as all links move them: where a run came from, and what became of
//! one that was sent.
//!
//! There is no trait over the links, because they have no operation in common:
//! [`crate::udp::UdpLink`] copies a run into and out of buffers of the caller, a ring
//! ([`crate::shm`]) shows the packets where they are and lends room to build them in, and
//! [`crate::raw`] moves batches of frames that have no address besides their own headers. They
//! share these types, and [`TxQueue`], where runs wait for room in the send buffer of a socket.
//!
//! Touches the epoll descriptor of a [`SendRoom`]; the sends are the caller's.

use crate::sys::SendRoom;
use roxe_base::lock::{Mutex, rank};
use roxe_wire::{Gid, NetHeader, Qpn, ROCE_PORT};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Largest UDP payload of one send or receive, bytes: what an IPv4 packet can carry (65,535 − 20 −
/// 8).
pub const MAX_BYTES: usize = 65_507;
/// Most packets of one send. Kernels before 6.9 refuse more.
pub const MAX_SEGMENTS: usize = 64;
/// TTL of packets whose address vector does not say (0) or would not leave the host (1), as
/// hardware does.
pub const HOP_LIMIT: u8 = 64;
/// Most bytes that wait: what eight threads have built when the socket is full, each a batch of 128
/// KB.
const QUEUE_LIMIT: usize = 1 << 20;

/// The hop limit that a packet has on the wire, where its address vector says `asked`.
// clause: IP-TTL
pub const fn hop_limit(asked: u8) -> u8 {
    if asked > 1 { asked } else { HOP_LIMIT }
}

/// Where a run of packets came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxMeta {
    /// Bytes in the buffer.
    pub len: usize,
    /// Bytes per packet; only the last one may be shorter. At least 1.
    pub segment: usize,
    /// Index of the first packet in what the sender handed to its kernel at once.
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
    /// Whether they came through shared memory: without an ICRC, and without credits to return.
    pub by_ring: bool,
}

impl RxMeta {
    /// That of a packet of `len` bytes which says nothing but where it comes from and goes to.
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

    /// How many packets there are.
    pub fn packets(&self) -> u64 {
        self.packets_in(self.len)
    }

    /// How many packets `len` of these bytes are.
    pub fn packets_in(&self, len: usize) -> u64 {
        // Nearly always one, for which a division would take longer than all the rest.
        if (1..=self.segment).contains(&len) { 1 } else { len.div_ceil(self.segment) as u64 }
    }
}

/// Why a run was not sent.
#[derive(Debug)]
pub enum SendError {
    /// The link did not take several packets at once. They go one by one:
    /// [`UdpLink::max_segments`](crate::udp::UdpLink::max_segments) says so for a while.
    NoSegments,
    /// The send buffer is full.
    Full,
    /// The send buffer and the queue behind it ([`TxQueue`]) are full: the packets are dropped.
    QueueFull,
    /// The packets are dropped, as if the network had lost them.
    Lost,
}

/// What became of a run that was not lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The system has it.
    Sent,
    /// The run waits for room in the send buffer, and is counted when it leaves.
    Queued,
}

/// What one send takes.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Destination; `None`: an Ethernet frame, which has it in its header.
    pub to: Option<NetHeader>,
    /// Bytes per packet; only the last one may be shorter. At least 1.
    pub segment: usize,
}

impl Run {
    /// How many packets `len` bytes are.
    pub fn packets(&self, len: usize) -> u64 {
        len.div_ceil(self.segment.max(1)) as u64
    }
}

/// What waits for room in the send buffer of a socket, in its order, and the queue pairs that wait
/// behind it.
///
/// Nobody ever waits in a send: who sends holds locks that receiving needs. What finds no room is
/// copied here instead, up to `QUEUE_LIMIT`, and [`SendRoom`] tells the background thread when the
/// socket takes packets again. Queue pairs ask before they build packets, so that a slow interface
/// holds them up and nothing is lost; what is queued are the last packets before each has noticed.
/// On the loopback interface no send buffer fills, and nobody takes the lock.
#[derive(Debug, Default)]
pub struct TxQueue {
    /// Changed under the lock only.
    has_runs: AtomicBool,
    state: Mutex<rank::TxQueue, State>,
    /// Watches a socket while its send buffer is full.
    room: Option<Arc<SendRoom>>,
}

#[derive(Debug, Default)]
struct State {
    runs: VecDeque<(Run, Box<[u8]>)>,
    /// Bytes of all `runs`.
    bytes: usize,
    waiters: Vec<Qpn>,
    /// Number of runs that were ever sent from here.
    left: u64,
    /// Nothing has left for so long that datagrams are lost until something does.
    is_stalled: bool,
}

impl TxQueue {
    /// For sockets whose room `room` tells of.
    pub(crate) fn new(room: &Arc<SendRoom>) -> Self {
        Self { room: Some(Arc::clone(room)), ..Self::default() }
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.has_runs.load(Ordering::Acquire)
    }

    /// Sends a run by `send`, which does not wait, or puts it behind those that wait for room.
    /// `socket` is the one that `send` uses for a run.
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
        self.put(run, bytes, socket, send)
    }

    #[cold]
    fn put(
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
            // There may be room by now; if not, the socket must be watched before anything is
            // queued.
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

    /// There may be room: sends what waits by `send`, in its order, and says of each run what came
    /// of it. The queue pairs that waited, once nothing is left.
    ///
    /// The lock is held meanwhile, so that nothing overtakes what waits; `send` does not wait.
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
                    // A socket that is not watched would never be drained.
                    Err(lost) => result = Err(lost),
                }
            }
            let len = bytes.len();
            report(run, len, result);
            state.runs.pop_front();
            state.bytes -= len;
            state.left += 1;
            state.is_stalled = false;
        }
        self.has_runs.store(false, Ordering::Release);
        std::mem::take(&mut state.waiters)
    }

    /// Registers `qpn` to be served when nothing waits any more. `None`: nothing does now. How many
    /// runs have left so far.
    pub fn wait(&self, qpn: Qpn) -> Option<u64> {
        let mut state = self.state.lock();
        if state.runs.is_empty() {
            return None;
        }
        state.waiters.push(qpn);
        Some(state.left)
    }

    /// How many runs have ever left from here.
    pub fn left(&self) -> u64 {
        self.state.lock().left
    }

    /// Nothing has left for too long: datagrams are lost until something does, as nobody repeats
    /// them anyway.
    pub fn set_stalled(&self) {
        let mut state = self.state.lock();
        state.is_stalled = !state.runs.is_empty();
    }

    /// Whether datagrams are lost here rather than wait.
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
            let left = self.room.get().checked_sub(1).ok_or(SendError::Full)?;
            self.room.set(left);
            self.sent.borrow_mut().push(bytes[0]);
            Ok(())
        }
    }

    fn send(queue: &TxQueue, wire: &Wire, what: u8) -> Result<Taken, SendError> {
        queue.send(RUN, &[what; 8], |_| -1, |run, bytes| wire.send(run, bytes))
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
    fn runs_that_find_no_room_leave_later_in_their_order() {
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
    fn queue_pairs_are_served_when_nothing_waits_any_more() {
        let (queue, wire, qpn) = (TxQueue::default(), Wire::default(), Qpn::new(7));
        assert_eq!(queue.wait(qpn), None, "nothing waits");
        (1..=2).for_each(|n| assert_eq!(send(&queue, &wire, n).unwrap(), Taken::Queued));
        assert_eq!(queue.wait(qpn), Some(0));
        wire.room.set(1);
        assert_eq!((drain(&queue, &wire).0, queue.left()), (vec![], 1));
        wire.room.set(1);
        assert_eq!((drain(&queue, &wire).0, queue.left()), (vec![qpn], 2));
        assert!(queue.is_empty());
    }

    #[test]
    fn no_more_waits_than_the_limit_and_nothing_new_while_it_is_stalled() {
        let (queue, wire) = (TxQueue::default(), Wire::default());
        let most = (0..=QUEUE_LIMIT).take_while(|_| send(&queue, &wire, 1).is_ok()).count();
        assert_eq!(most, QUEUE_LIMIT / 8);
        assert!(matches!(send(&queue, &wire, 2), Err(SendError::QueueFull)));
        wire.room.set(1);
        drain(&queue, &wire);
        assert!(send(&queue, &wire, 2).is_ok());
        queue.set_stalled();
        wire.room.set(0);
        drain(&queue, &wire);
        assert!(queue.is_stalled() && matches!(send(&queue, &wire, 3), Err(SendError::QueueFull)));
        wire.room.set(most + 1);
        drain(&queue, &wire);
        assert!(!queue.is_stalled() && queue.is_empty());
    }

    #[test]
    fn a_queued_run_that_the_system_refuses_is_dropped_and_reported() {
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
