//! The end of the process: peers hear of connections that the program did not end, and other
//! processes get what came here for them. A kernel does both for a program that just stops; without
//! us nobody would answer its peers for minutes.
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

    /// Receives until nothing is left, and sends on what is for others until their mailboxes have
    /// taken it.
    fn deliver_mail(&self) {
        let deadline = clock::now().after(MAIL_LIMIT);
        while let Some(mut rx) = self.rx.try_lock_for(LOCK_LIMIT) {
            self.receive_until_empty(&mut rx, DRAIN_ROUNDS);
            self.end_waiting(rx.state(), Instant(u64::MAX), clock::now());
            let waits = !rx.state().forward_queue.is_empty();
            drop(rx);
            let waits = self.send_all_queued() || waits;
            self.run_cm();
            if !waits || clock::now() >= deadline {
                return;
            }
            thread::sleep(LOOK);
        }
    }
}
