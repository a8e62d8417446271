//! The end of the process, or of an engine: peers are notified of open connections, and packets for
//! other processes are forwarded, as a kernel driver does. All waits are bounded. A killed process
//! does none of this.

use crate::engine::Engine;
use crate::progress::DRAIN_ROUNDS;
use roxe_base::clock;
use roxe_transport::time::Instant;
use std::thread;
use std::time::Duration;

/// Maximum wait for a lock, which the exiting thread itself may hold.
pub const LOCK_LIMIT: Duration = Duration::from_millis(50);
/// Maximum wait for processes that do not read their mailbox.
const MAIL_LIMIT: Duration = Duration::from_millis(200);
const RETRY: Duration = Duration::from_millis(1);

impl Engine {
    /// Notifies peers of open connections and forwards packets of other processes. Bounded in time.
    pub fn shut_down(&self) {
        if self.is_started() {
            // Packets that wait for a ring leave through the socket.
            self.flows.push_ready(self.rings.end_awaiting(Instant(u64::MAX)).into_iter());
            self.serve_ready(clock::now());
            // Packets of this process to itself may be in its own socket; peers get them before the
            // notification.
            if let Some(mut rx) = self.rx.try_lock_for(LOCK_LIMIT) {
                self.receive_until_empty(&mut rx, DRAIN_ROUNDS);
            }
            self.settle(clock::now());
            self.services.end_connections(self, LOCK_LIMIT);
            self.deliver_mail();
        }
    }

    /// Closes the sockets of an engine that is no longer used, after forwarding packets of other
    /// processes: until the kernel knows a new process's slot, and while slots change, it may give
    /// us their packets.
    pub(crate) fn close_sockets(&self) {
        if self.is_started() {
            let mut rx = self.rx.lock();
            self.stop_receiving();
            self.receive_until_empty(&mut rx, DRAIN_ROUNDS);
            let deadline = clock::now().after(MAIL_LIMIT);
            while !rx.state.forward_queue.is_empty() && clock::now() < deadline {
                thread::sleep(RETRY);
                self.serve_processes(&mut rx.state, clock::now());
            }
            // The kernel may have chosen our socket for a packet before it stopped.
            self.receive_until_empty(&mut rx, DRAIN_ROUNDS);
            rx.clear();
            self.links.clear();
        }
    }

    fn stop_receiving(&self) {
        self.links.udp.read().iter().for_each(|link| link.stop_receiving());
    }

    /// Receives and forwards until the sources are empty and the mailboxes have taken everything.
    fn deliver_mail(&self) {
        let deadline = clock::now().after(MAIL_LIMIT);
        let mut is_last = false;
        while let Some(mut rx) = self.rx.try_lock_for(LOCK_LIMIT) {
            self.receive_until_empty(&mut rx, DRAIN_ROUNDS);
            self.send_delayed_ack(&mut rx.state, Instant(u64::MAX), clock::now());
            let waits = !rx.state.forward_queue.is_empty();
            drop(rx);
            let waits = self.send_all_queued() || waits;
            self.run_cm();
            if waits && clock::now() < deadline {
                thread::sleep(RETRY);
            } else if std::mem::replace(&mut is_last, true) {
                return;
            } else {
                // Packets that arrive from here on would be lost; the kernel gives them to other
                // processes.
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
    fn packets_for_another_process_are_forwarded_before_close() {
        const HERE: Ipv4Addr = Ipv4Addr::new(127, 78, 1, 1);
        let engine = private_engine_at(HERE);
        engine.start_with_links().unwrap();
        let owner = SlotSocket::claim(engine.ifindex()).unwrap();
        let header = Header { bth: Bth::new(owner.slot().qpn(1), Psn::new(0)), kind: Kind::Cnp };
        let mut packet = vec![0; header.padded_len(0) + icrc::LEN];
        header.emit(0, &mut packet[..header.padded_len(0)]).unwrap();
        let link = engine.links.get(HERE.into()).unwrap();
        let here = NetHeader { dst: HERE.into(), src_port: link.local_port(), hop_limit: 64, ..NetHeader::default() };
        // Another thread is about to receive, then idle.
        let held = engine.rx.lock();
        link.send(&here, &packet, packet.len()).unwrap();
        drop((held, link));
        engine.release();
        let mut buf = [0; 200];
        let (len, _) = owner.recv(&mut buf).unwrap().expect("receive the forwarded packet");
        assert!(matches!(Frame::parse(&buf[..len]), Some((Frame::Packets(_), body)) if body == packet));
    }
}
