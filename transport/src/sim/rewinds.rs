//! How often a requester went back to the same place, read off the packets it sends.
//!
//! Touches packets as bytes only. A network that pauses its faults for a requester that is stuck
//! never spends a bounded `retry_cnt` by bad luck, so a scenario may ask that everything succeeds.

use roxe_wire::Psn;

/// What was read off the packets of one requester.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rewinds {
    last: Option<Psn>,
    /// Newest PSN sent.
    high: Psn,
    /// Where the last rewind went.
    start: Psn,
    /// Rewinds since the last one that went further than the one before.
    count: u32,
    /// The pause of faults ends here.
    calm_until: Psn,
}

impl Rewinds {
    /// New PSNs that must pass before faults may resume.
    const FRESH: u32 = 32;

    /// Notes one packet; responses (RC opcodes 0x0d..=0x12) and congestion notices (0x81) are no
    /// business of a requester.
    pub(super) fn on_packet(&mut self, bytes: &[u8]) {
        let psn = match *bytes {
            [0x0d..=0x12 | 0x81, ..] => return,
            [_, _, _, _, _, _, _, _, _, high, mid, low, ..] => Psn::new(u32::from_be_bytes([0, high, mid, low])),
            _ => return,
        };
        if self.last.is_some_and(|last| !psn.is_after(last)) {
            let further = self.count == 0 || psn.is_after(self.start);
            self.count = if further { 1 } else { self.count + 1 };
            self.start = psn;
            self.calm_until = self.high.add(Self::FRESH);
        } else if self.last.is_none() || psn.is_after(self.high) {
            self.high = psn;
        }
        self.last = Some(psn);
    }

    /// Whether faults must pause: the requester is stuck and has not sent enough new packets since.
    pub(super) fn is_stuck(&self, limit: u32) -> bool {
        self.count >= limit && !self.high.is_after(self.calm_until)
    }
}
