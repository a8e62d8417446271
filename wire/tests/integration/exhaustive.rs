//! Small pure functions on all inputs, or on all values of one argument and the edges of the other.
//! The tests of PSNs are in `src/num.rs`.

use roxe_wire::{Msn, Pkey};

const SPACE: u32 = 1 << 24;

#[test]
#[cfg_attr(miri, ignore = "millions of numbers take Miri too long")]
fn msn_counts_through_its_24_bits() {
    let mut msn = Msn::new(0);
    for value in 0..SPACE {
        assert_eq!(msn.get(), value);
        msn = msn.next();
    }
    assert_eq!(msn, Msn::new(0));
}

// clause: PKEY-MATCH
#[test]
#[cfg_attr(miri, ignore = "millions of numbers take Miri too long")]
fn pkeys_match_only_with_equal_bits_and_a_full_member() {
    for own in 0..=u16::MAX {
        // The other key differs in each bit, alone and together with the membership bit.
        let flips = (0..16).map(|bit| 1u16 << bit).flat_map(|flip| [flip, flip ^ 0x8000]).chain([0, 0x8000, u16::MAX]);
        for other in flips.map(|flip| own ^ flip) {
            let is_equal = own % 0x8000 == other % 0x8000;
            let expected = is_equal && own % 0x8000 > 0 && (own >= 0x8000 || other >= 0x8000);
            assert_eq!(Pkey(own).matches(Pkey(other)), expected, "{own:#x} {other:#x}");
        }
    }
}
