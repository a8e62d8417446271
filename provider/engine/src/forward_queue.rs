//! Packets for other processes that wait for room in the mailbox of the process.
//!
//! A mailbox holds ten frames (`net.unix.max_dgram_qlen`), and a window of packets may need more.
//! UC and UD do not retransmit, so frames wait in order until the owner has read. The queue is
//! bounded: an owner that never reads loses later frames.

use roxe_net::forward::{Frame, HEADER_LEN};
use roxe_net::service::Mailbox;
use roxe_net::slot::SlotSocket;
use std::collections::VecDeque;
use std::io;

/// Maximum number of bytes that wait for one owner: more than the largest window of a few senders.
const MAX_PER_OWNER: usize = 4 << 20;
const MAX_OWNERS: usize = 16;

#[derive(Debug)]
struct Outbox {
    to: Mailbox,
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
}

#[derive(Debug, Default)]
pub(crate) struct ForwardQueue {
    boxes: Vec<Outbox>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForwardOutcome {
    /// Delivered or queued.
    Forwarded,
    /// No process owns the mailbox.
    Unowned,
    /// Lost: too many frames are queued, or a system error.
    Lost,
}

impl ForwardQueue {
    /// Sends `body` under `frame` to `to`, after the frames queued for it.
    pub(crate) fn send(&mut self, from: &SlotSocket, to: Mailbox, frame: &Frame, body: &[u8]) -> ForwardOutcome {
        let header = frame.header();
        let Some(outbox) = self.boxes.iter_mut().find(|outbox| outbox.to == to) else {
            return match from.send_to_mailbox(&to, &header, body) {
                Ok(()) => ForwardOutcome::Forwarded,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.open(to, &header, body),
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => ForwardOutcome::Unowned,
                Err(_) => ForwardOutcome::Lost,
            };
        };
        outbox.push(&header, body)
    }

    /// Sends queued frames as far as there is room. Returns the number of frames lost because their
    /// owners have died, or because of a system error.
    pub(crate) fn retry(&mut self, from: &SlotSocket) -> u64 {
        let mut lost = 0;
        self.boxes.retain_mut(|outbox| outbox.drain(from, &mut lost));
        lost
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.boxes.is_empty()
    }

    fn open(&mut self, to: Mailbox, header: &[u8; HEADER_LEN], body: &[u8]) -> ForwardOutcome {
        if self.boxes.len() >= MAX_OWNERS {
            return ForwardOutcome::Lost;
        }
        let mut outbox = Outbox { to, frames: VecDeque::new(), bytes: 0 };
        let outcome = outbox.push(header, body);
        self.boxes.push(outbox);
        outcome
    }
}

impl Outbox {
    fn push(&mut self, header: &[u8; HEADER_LEN], body: &[u8]) -> ForwardOutcome {
        if self.bytes + body.len() > MAX_PER_OWNER {
            return ForwardOutcome::Lost;
        }
        self.bytes += body.len();
        self.frames.push_back([header, body].concat());
        ForwardOutcome::Forwarded
    }

    /// Sends from the front; returns true if frames remain. Frames that cannot be sent are counted
    /// in `lost`.
    fn drain(&mut self, from: &SlotSocket, lost: &mut u64) -> bool {
        while let Some(frame) = self.frames.front() {
            match from.send_to_mailbox(&self.to, frame, &[]) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                sent => *lost += u64::from(sent.is_err()),
            }
            self.bytes -= frame.len().saturating_sub(HEADER_LEN).min(self.bytes);
            self.frames.pop_front();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: u32 = 0x7000_0020;
    const FRAME: Frame = Frame::ProbeSeen { nonce: 1, round: 1, index: 2 };

    fn sockets() -> (SlotSocket, SlotSocket) {
        (SlotSocket::claim(NOWHERE).unwrap(), SlotSocket::claim(NOWHERE).unwrap())
    }

    #[test]
    fn frames_beyond_mailbox_capacity_arrive_in_order() {
        let (from, owner) = sockets();
        let mut forward_queue = ForwardQueue::default();
        for n in 0..100u8 {
            assert_eq!(forward_queue.send(&from, Mailbox::Slot(owner.slot()), &FRAME, &[n]), ForwardOutcome::Forwarded);
        }
        assert!(!forward_queue.is_empty());
        let (mut buf, mut got) = ([0; 100], Vec::new());
        while got.len() < 100 {
            forward_queue.retry(&from);
            while let Some((len, _)) = owner.recv(&mut buf).unwrap() {
                got.push(buf[len - 1]);
            }
        }
        assert!(got.into_iter().eq(0..100));
        assert!(forward_queue.is_empty());
    }

    #[test]
    fn queue_is_bounded_and_dropped_with_its_owner() {
        let (from, owner) = sockets();
        let mut forward_queue = ForwardQueue::default();
        let body = vec![0; 60_000];
        let fates: Vec<_> =
            (0..200).map(|_| forward_queue.send(&from, Mailbox::Slot(owner.slot()), &FRAME, &body)).collect();
        assert_eq!((fates[0], fates[199]), (ForwardOutcome::Forwarded, ForwardOutcome::Lost));
        let slot = owner.slot();
        drop(owner);
        assert!(forward_queue.retry(&from) > 0, "frames for a dead owner are counted");
        assert!(forward_queue.is_empty());
        assert_eq!(forward_queue.send(&from, Mailbox::Slot(slot), &FRAME, &body), ForwardOutcome::Unowned);
    }
}
