//! Send buffers that were full have room again: what waits for it leaves, and the queue pairs behind it are served.
//!
//! The background thread is told by the system; a queue pair whose timer runs out looks itself, because the system tells only
//! when half of a buffer is free, which takes a slow interface seconds. Touches the queues of the links.

use crate::counters::Counters;
use crate::engine::Engine;
use crate::poller::Poller;
use roxe_base::clock;
use roxe_base::error::Error;
use roxe_net::frames::FrameSender;
use roxe_net::link::SendError;
use roxe_net::tx_queue::TxQueue;
use std::sync::{Arc, Weak};

impl Engine {
    /// What a raw packet queue pair sends by. Errors as [`FrameSender::open`].
    pub fn open_frame_sender(&self) -> Result<Arc<FrameSender>, Error> {
        self.start()?;
        let sender = Arc::new(FrameSender::open(&self.adapter.interface(), self.poller()?.send_room())?);
        let mut senders = self.frame_senders.lock();
        senders.retain(|sender| sender.strong_count() > 0);
        senders.push(Arc::downgrade(&sender));
        Ok(sender)
    }

    /// Sockets have room. Background thread only.
    pub(crate) fn on_send_room(&self, poller: &Poller) {
        // First: what is full again is watched anew.
        poller.send_room().clear();
        self.send_all_queued();
        self.serve_ready(clock::now());
    }

    /// Sends what waits for room, as far as there is some. Whether something still waits.
    pub(crate) fn send_all_queued(&self) -> bool {
        let links: Vec<_> = self.links.read().iter().filter(|link| !link.queue().is_empty()).map(Arc::clone).collect();
        let senders: Vec<_> = self.frame_senders.lock().iter().filter_map(Weak::upgrade).collect();
        let counters = self.counters();
        for link in &links {
            let ready = link.send_queued(|run, len, result| {
                count(counters, run.packets(len), result, |packets| counters.count_sent(packets, len as u64));
            });
            self.flows.push_ready(ready.into_iter());
        }
        for sender in senders.iter().filter(|sender| !sender.queue().is_empty()) {
            let ready = sender.send_queued(|_, _, result| {
                count(counters, 1, result, |frames| counters.sent_frames.add(frames));
            });
            self.flows.push_ready(ready.into_iter());
        }
        let waits = |queue: &TxQueue| !queue.is_empty();
        links.iter().any(|link| waits(link.queue())) || senders.iter().any(|sender| waits(sender.queue()))
    }
}

/// Counts what came of `packets` that waited.
fn count(counters: &Counters, packets: u64, result: Result<(), SendError>, sent: impl FnOnce(u64)) {
    match result {
        Ok(()) => sent(packets),
        // Sealed as one run they cannot leave alone.
        Err(SendError::NoSegments) => {
            counters.segments_refused.add(1);
            counters.send_errors.add(packets);
        }
        Err(_) => counters.send_errors.add(packets),
    }
}
