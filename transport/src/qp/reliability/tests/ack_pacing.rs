//! Acknowledgement requests.

use super::*;

// clause: SEND-ASK-MIDDLE
#[test]
fn ack_is_requested_by_bytes_packets_and_window() {
    let asks = |limit, bytes, window| {
        let mut ack_pacing = AckReqPacing { limit, ..AckReqPacing::default() };
        let mut until = |_: &i32| {
            let asks = ack_pacing.is_due(bytes, window);
            ack_pacing.add(1, bytes, asks);
            !asks
        };
        [(); 2].map(|()| 1 + (0..1000).take_while(&mut until).count())
    };
    assert_eq!(asks(10_000, 1000, 1 << 16), [10, 10]);
    assert_eq!(asks(u32::MAX, 1000, 1 << 16), [64, 64]);
    assert_eq!(asks(u32::MAX, 1000, 64), [16, 16]);
    assert_eq!(asks(1, 1000, 1 << 16), [1, 1]);
}
