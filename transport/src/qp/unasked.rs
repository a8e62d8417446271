//! When an RC sender asks for an acknowledgement in the middle of a message. Knows numbers, nothing
//! else.

/// Packets after which an acknowledgement is asked for, also where they count for few bytes.
const ASK_PACKETS: i32 = 64;

/// Packets on their way whose arrival nobody has asked about yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unasked {
    packets: i32,
    bytes: u32,
    /// [`crate::cx::FlowControl::ack_interval`].
    pub(super) limit: u32,
}

impl Unasked {
    /// Whether a packet of `bytes` more is to ask, when `window` PSNs may be under way. A quarter
    /// of them, so that losing one packet that asks does not stop everything until the timer runs
    /// out.
    pub(super) fn is_enough(&self, bytes: u32, window: i32) -> bool {
        self.bytes + bytes >= self.limit || self.packets + 1 >= ASK_PACKETS.min(window / 4)
    }

    /// How many packets of `bytes` may leave before one is to ask.
    pub(super) fn spare(&self, bytes: u32, window: i32) -> u32 {
        let by_bytes = self.limit.saturating_sub(self.bytes + 1) / bytes;
        let by_packets = ASK_PACKETS.min(window / 4) - 1 - self.packets;
        by_bytes.min(u32::try_from(by_packets).unwrap_or(0))
    }

    /// Packets of `bytes` together leave, and ask if one of them `asks`.
    pub(super) fn add(&mut self, packets: u32, bytes: u32, asks: bool) {
        (self.packets, self.bytes) = if asks { (0, 0) } else { (self.packets + packets as i32, self.bytes + bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // clause: SEND-ASK-MIDDLE
    #[test]
    fn an_acknowledgement_is_asked_for_by_bytes_packets_and_window() {
        let asks = |limit, bytes, window| {
            let mut unasked = Unasked { limit, ..Unasked::default() };
            let mut until = |_: &i32| {
                let asks = unasked.is_enough(bytes, window);
                unasked.add(1, bytes, asks);
                !asks
            };
            [(); 2].map(|()| 1 + (0..1000).take_while(&mut until).count())
        };
        assert_eq!(asks(10_000, 1000, 1 << 16), [10, 10]);
        assert_eq!(asks(u32::MAX, 1000, 1 << 16), [64, 64]);
        assert_eq!(asks(u32::MAX, 1000, 64), [16, 16]);
        assert_eq!(asks(1, 1000, 1 << 16), [1, 1]);
    }
}
