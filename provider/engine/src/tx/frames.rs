//! Sending frames of raw packet queue pairs: staged as packets are, but not sealed.

use super::Batch;
use roxe_net::link::{SendError, Taken};
use roxe_net::raw::FrameSender;
use roxe_observe::counters::Counters;
use roxe_wire::icrc;

impl Batch {
    /// Sends all staged packets as frames in order. Frames that cannot be sent are lost and
    /// counted.
    pub fn flush_frames(&mut self, link: &FrameSender, counters: &Counters) {
        let mut at = 0;
        while let Some(rest) = self.packets.get(at..).filter(|rest| !rest.is_empty()) {
            // Each staged packet has room for an ICRC, which frames do not use.
            let mut frames =
                rest.iter().filter_map(|entry| self.bytes.get(entry.start..entry.start + entry.len - icrc::LEN));
            match if link.queue().is_empty() { link.send(frames.clone()) } else { Ok(0) } {
                Ok(count @ 1..) => {
                    counters.sent_frames.add(count as u64);
                    at += count;
                    continue;
                }
                Ok(0) | Err(SendError::Full) => queue(link, frames.next(), counters),
                Err(_) => counters.send_errors.add(1),
            }
            at += 1;
        }
        self.clear();
    }
}

#[cold]
fn queue(link: &FrameSender, frame: Option<&[u8]>, counters: &Counters) {
    match link.send_later(frame.unwrap_or_default()) {
        Ok(Taken::Queued) => {}
        Ok(Taken::Sent) => counters.sent_frames.add(1),
        Err(SendError::QueueFull) => counters.tx_queue_full.add(1),
        Err(_) => counters.send_errors.add(1),
    }
}
