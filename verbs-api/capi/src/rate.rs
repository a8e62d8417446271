//! Conversions of `enum ibv_rate` to and from Mbit/s and multiples of 2.5 Gbit/s.

use core::ffi::c_int;

/// `IBV_RATE_MAX`: the rate of the port. Also returned for an unknown rate.
const RATE_MAX: c_int = 0;

struct Rate {
    /// `enum ibv_rate`.
    code: c_int,
    /// Mbit/s on the wire.
    mbps: c_int,
    /// Multiple of 2.5 Gbit/s.
    mult: Option<c_int>,
}

const fn rate(code: c_int, mbps: c_int, mult: c_int) -> Rate {
    Rate { code, mbps, mult: if mult > 0 { Some(mult) } else { None } }
}

/// `enum ibv_rate`. Rates from FDR on include coding overhead, so "14" is 14,062 Mbit/s.
const RATES: [Rate; 23] = [
    rate(2, 2_500, 1),
    rate(5, 5_000, 2),
    rate(3, 10_000, 4),
    rate(6, 20_000, 8),
    rate(4, 30_000, 12),
    rate(7, 40_000, 16),
    rate(8, 60_000, 24),
    rate(9, 80_000, 32),
    rate(10, 120_000, 48),
    rate(11, 14_062, 0),
    rate(12, 56_250, 0),
    rate(13, 112_500, 0),
    rate(14, 168_750, 0),
    rate(15, 25_781, 0),
    rate(16, 103_125, 0),
    rate(17, 206_250, 0),
    rate(18, 309_375, 0),
    rate(19, 28_125, 11),
    rate(20, 53_125, 20),
    rate(21, 425_000, 160),
    rate(22, 637_500, 240),
    rate(23, 850_000, 320),
    rate(24, 1_275_000, 480),
];

/// `man ibv_rate_to_mult`: returns -1 if the rate is unknown or not a multiple.
pub(crate) extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|r| r.code == rate).and_then(|r| r.mult).unwrap_or(-1)
}

/// `man ibv_rate_to_mult`.
pub(crate) extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    RATES.iter().find(|r| r.mult == Some(mult)).map_or(RATE_MAX, |r| r.code)
}

/// `man ibv_rate_to_mbps`: returns -1 if the rate is unknown.
pub(crate) extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|r| r.code == rate).map_or(-1, |r| r.mbps)
}

/// `man ibv_rate_to_mbps`.
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|r| r.mbps == mbps).map_or(RATE_MAX, |r| r.code)
}

/// Returns the Mbit/s of a `static_rate`; 0 for the port's rate and for undefined numbers, which
/// perftest passes.
pub(crate) fn static_rate(code: u8) -> u32 {
    u32::try_from(ibv_rate_to_mbps(code.into())).unwrap_or(0)
}

pub(crate) fn static_rate_code(mbps: u32) -> u8 {
    c_int::try_from(mbps).ok().and_then(|mbps| u8::try_from(mbps_to_ibv_rate(mbps)).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_converts_both_ways() {
        for code in 2..=24 {
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(code)), code);
            let mult = ibv_rate_to_mult(code);
            assert!(mult == -1 || mult_to_ibv_rate(mult) == code);
            assert_eq!(static_rate_code(static_rate(code as u8)), code as u8);
        }
    }

    #[test]
    fn unknown_rates_convert_to_the_default() {
        assert_eq!((static_rate(0), static_rate(1), static_rate(255)), (0, 0, 0));
        assert_eq!((static_rate_code(0), static_rate_code(1), static_rate_code(u32::MAX)), (0, 0, 0));
        assert_eq!((ibv_rate_to_mbps(0), ibv_rate_to_mult(25)), (-1, -1));
        assert_eq!((mbps_to_ibv_rate(1), mult_to_ibv_rate(3)), (RATE_MAX, RATE_MAX));
        assert_eq!(mult_to_ibv_rate(-1), RATE_MAX);
    }
}
