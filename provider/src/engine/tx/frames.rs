//! Frames of raw packets on their way out: the same staging buffer, another link, nothing to seal.

use super::Batch;
use crate::counters::Counters;
use crate::net::frames::FrameSender;
use roxe_wire::icrc;

impl Batch {
    /// Sends everything as frames, in order. What cannot be sent is lost and counted, as on any network.
    pub(crate) fn flush_frames(&mut self, link: &FrameSender, counters: &Counters) {
        let mut at = 0;
        while let Some(rest) = self.packets.get(at..).filter(|rest| !rest.is_empty()) {
            // A slot has room for an ICRC, which a frame has no use for.
            let frames =
                rest.iter().filter_map(|entry| self.bytes.get(entry.start..entry.start + entry.len - icrc::LEN));
            match link.send(frames) {
                Ok(count) => {
                    counters.sent_frames.add(count as u64);
                    at += count.max(1);
                }
                Err(_) => {
                    counters.send_errors.add(1);
                    at += 1;
                }
            }
        }
        self.clear();
    }
}
