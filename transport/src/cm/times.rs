//! What the time codes of messages mean. Touches nothing.

use core::time::Duration;
use roxe_wire::cm::TimeCode;

/// The longest wait that a message can ask for, as a code: 65.5 s, what the kernel itself asks for
/// with an MRA.
const LONGEST: u8 = 24;

/// How long to wait for a 5-bit code: 4.096 µs · 2^code as the kernel rounds it, to milliseconds
/// and at least one.
// clause: CM-WAIT
pub(super) fn wait(code: TimeCode) -> Duration {
    Duration::from_millis(1 << code.get().min(LONGEST).saturating_sub(8))
}

/// The ACK timeout code of a path whose packets live for `lifetime` towards a card that answers
/// within `delay` (both codes): about log2(2 · 2^lifetime + 2^delay), in the kernel's arithmetic.
// clause: CM-ACK-TIMEOUT
pub(super) fn ack_timeout(delay: TimeCode, lifetime: TimeCode) -> TimeCode {
    let (delay, there_and_back) = (delay.get(), lifetime.get() + 1);
    let code = if there_and_back >= delay {
        there_and_back + u8::from(delay >= lifetime.get())
    } else {
        delay + u8::from(there_and_back >= delay.saturating_sub(1))
    };
    TimeCode::new(code.min(31))
}

#[cfg(test)]
mod tests {
    use super::*;

    // clause: CM-WAIT
    #[test]
    fn codes_are_powers_of_two_milliseconds() {
        assert_eq!([0, 8, 9, 20, 24].map(|code| wait(TimeCode::new(code)).as_millis()), [1, 1, 2, 4096, 65536]);
        assert_eq!(
            [25, 31].map(|code| wait(TimeCode::new(code)).as_millis()),
            [65536; 2],
            "no peer makes us wait for hours"
        );
    }

    // clause: CM-ACK-TIMEOUT
    #[test]
    fn the_ack_timeout_is_the_kernels() {
        let known = [((15, 16), 17), ((16, 16), 18), ((15, 18), 19), ((0, 16), 17), ((31, 31), 31), ((20, 3), 20)];
        for ((delay, lifetime), code) in known {
            let [delay, lifetime, code] = [delay, lifetime, code].map(TimeCode::new);
            assert_eq!(ack_timeout(delay, lifetime), code, "delay {delay:?}, lifetime {lifetime:?}");
        }
    }
}
