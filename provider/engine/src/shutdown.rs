//! The end of the process, or of an engine in it: peers hear of connections that the program did
//! not end, and other processes get what came here for them. A kernel does both for a program that
//! just stops; without us nobody would answer its peers for minutes.
//!
//! Bounded, because nobody waits gladly for a process that ends. One that is killed does none of
//! it.

use crate::engine::Engine;
use crate::progress::DRAIN_ROUNDS;
use roxe_base::clock;
use roxe_transport::time::Instant;
use std::thread;
use std::time::Duration;

/// Longest wait for a lock: the thread that holds it may be the one that ends the process.
pub const LOCK_LIMIT: Duration = Duration::from_millis(50);
/// Longest wait for processes that do not read what we have for them.
const MAIL_LIMIT: Duration = Duration::from_millis(200);
/// How long until the next look at a full mailbox.
const LOOK: Duration = Duration::from_millis(1);

impl Engine {
    /// Peers hear of connections that the program did not end, and other processes get what came
    /// here for them. Bounded in time.
    pub fn shut_down(&self) {
        if self.is_started() {
            // What waits for a ring leaves by the socket now.
            self.flows.push_ready(self.rings.end_awaiting(Instant(u64::MAX)).into_iter());
            self.serve_ready(clock::now());
            // Our last packets, too, may have come to our own socket; peers get them before they
            // hear of the end.
            if let Some(mut rx) = self.rx.try_lock_for(LOCK_LIMIT) {
                self.receive_until_empty(&mut rx, DRAIN_ROUNDS);
            }
            self.settle(clock::now());
            self.services.end_connections(self, LOCK_LIMIT);
            self.deliver_mail();
        }
    }

    /// Closes the sockets, for an engine that nobody has any more; other processes get first what
    /// came here for them. The kernel gives us packets of a process that has just come until its
    /// slot is known, and those of everybody while numbers move.
    pub(crate) fn close_sockets(&self) {
        if self.is_started() {
            let mut rx = self.rx.lock();
            self.stop_receiving();
            self.receive_until_empty(&mut rx, DRAIN_ROUNDS);
            let deadline = clock::now().after(MAIL_LIMIT);
            while !rx.state.forward_queue.is_empty() && clock::now() < deadline {
                thread::sleep(LOOK);
                self.serve_processes(&mut rx.state, clock::now());
            }
            // A packet for which the kernel had chosen our socket before it stopped may have come
            // meanwhile.
            self.receive_until_empty(&mut rx, DRAIN_ROUNDS);
            rx.clear();
            self.links.clear();
        }
    }

    fn stop_receiving(&self) {
        self.links.udp.read().iter().for_each(|link| link.stop_receiving());
    }

    /// Receives until nothing is left, and sends on what is for others until their mailboxes have
    /// taken it.
    fn deliver_mail(&self) {
        let deadline = clock::now().after(MAIL_LIMIT);
        let mut is_last = false;
        while let Some(mut rx) = self.rx.try_lock_for(LOCK_LIMIT) {
            self.receive_until_empty(&mut rx, DRAIN_ROUNDS);
            self.end_waiting(&mut rx.state, Instant(u64::MAX), clock::now());
            let waits = !rx.state.forward_queue.is_empty();
            drop(rx);
            let waits = self.send_all_queued() || waits;
            self.run_cm();
            if waits && clock::now() < deadline {
                thread::sleep(LOOK);
            } else if std::mem::replace(&mut is_last, true) {
                return;
            } else {
                // What arrives from here on would be lost: other processes get it.
                self.stop_receiving();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::private_engine_at;
    use roxe_net::forward::Frame;
    use roxe_net::slot::SlotSocket;
    use roxe_wire::{Bth, Header, Kind, NetHeader, Psn, icrc};
    use std::net::Ipv4Addr;

    #[test]
    fn what_came_for_another_process_is_forwarded_before_the_sockets_close() {
        const HERE: Ipv4Addr = Ipv4Addr::new(127, 78, 1, 1);
        let engine = private_engine_at(HERE);
        engine.start_with_links().unwrap();
        let owner = SlotSocket::claim(engine.ifindex()).unwrap();
        let header = Header { bth: Bth::new(owner.slot().qpn(1), Psn::new(0)), kind: Kind::Cnp };
        let mut packet = vec![0; header.padded_len(0) + icrc::LEN];
        header.emit(0, &mut packet[..header.padded_len(0)]).unwrap();
        let link = engine.links.get(HERE.into()).unwrap();
        let here = NetHeader { dst: HERE.into(), src_port: link.local_port(), hop_limit: 64, ..NetHeader::default() };
        // Somebody else of this process is about to receive, and then has nothing to do.
        let held = engine.rx.lock();
        link.send(&here, &packet, packet.len()).unwrap();
        drop((held, link));
        engine.release();
        let mut buf = [0; 200];
        let (len, _) = owner.recv(&mut buf).unwrap().expect("the packet is lost");
        assert!(matches!(Frame::parse(&buf[..len]), Some((Frame::Packets(_), body)) if body == packet));
    }
}
