//! Layout of messages: one table per message defines its parser, its writer and its documentation.
//! Also the parse errors of messages.
//!
//! Bits are counted as in the specification: bit 0 of a byte is its most significant one.

use crate::num::{Gid, Pkey, Psn, Qkey, Qpn};
use core::fmt;
use core::ops::Range;

/// Position of a field in a message, or of one piece of a field.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bits {
    byte: usize,
    bit: usize,
    width: usize,
}

impl Bits {
    /// Creates the position of `width` bits from bit `bit` of byte `byte` on.
    ///
    /// # Panics
    /// If the bits exceed `room` bytes. All calls are evaluated at compile time.
    pub(super) const fn new(room: usize, byte: usize, bit: usize, width: usize) -> Self {
        assert!(bit < 8 && width > 0 && byte * 8 + bit + width <= room * 8, "a field outside its message");
        Self { byte, bit, width }
    }

    const fn span(self) -> Range<usize> {
        self.byte..self.byte + (self.bit + self.width).div_ceil(8)
    }

    /// Returns the number of bits after the field in its last byte.
    const fn trailing_bits(self) -> usize {
        (self.bit + self.width).next_multiple_of(8) - self.bit - self.width
    }

    /// Returns the mask of the field in the number that its span forms.
    const fn mask(self) -> u64 {
        u64::MAX.unbounded_shr(64_u32.saturating_sub(self.width as u32)) << self.trailing_bits()
    }

    fn bytes(self, area: &[u8]) -> Result<&[u8], MadError> {
        area.get(self.span()).ok_or(MadError::Length)
    }

    fn read(self, area: &[u8]) -> Result<u64, MadError> {
        let word = self.bytes(area)?.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        Ok((word & self.mask()) >> self.trailing_bits())
    }

    /// ORs the low bits of `value` into the bits of the field, which are zero.
    // clause: CM-RESERVED
    fn write(self, area: &mut [u8], value: u64) {
        let word = value << self.trailing_bits() & self.mask();
        let bytes = area.get_mut(self.span()).unwrap_or_default();
        for (byte, part) in bytes.iter_mut().rev().zip(word.to_le_bytes()) {
            *byte |= part;
        }
    }
}

/// A field of a message. `at` lists its pieces; most fields have one.
pub(super) trait Field: Sized {
    fn read(area: &[u8], at: &[Bits]) -> Result<Self, MadError>;

    /// Writes the field, whose bits in `area` must be zero.
    fn write(&self, area: &mut [u8], at: &[Bits]);
}

/// A number of at most 64 bits. If the field has several pieces, the first has the high bits.
pub(super) trait Number {
    /// Converts `number`, which has at most as many bits as the field.
    fn from_number(number: u64) -> Self;
    fn to_number(&self) -> u64;
}

impl<T: Number> Field for T {
    fn read(area: &[u8], at: &[Bits]) -> Result<Self, MadError> {
        let number =
            at.iter().try_fold(0_u64, |high, bits| Ok(high.unbounded_shl(bits.width as u32) | bits.read(area)?));
        number.map(Self::from_number)
    }

    fn write(&self, area: &mut [u8], at: &[Bits]) {
        let mut number = self.to_number();
        for bits in at.iter().rev() {
            bits.write(area, number);
            number = number.unbounded_shr(bits.width as u32);
        }
    }
}

/// Returns the `N` bytes at `at`.
pub(super) fn read_array<const N: usize>(area: &[u8], at: Option<&Bits>) -> Result<[u8; N], MadError> {
    let bytes = at.ok_or(MadError::Length)?.bytes(area)?;
    bytes.try_into().map_err(|_| MadError::Length)
}

pub(super) fn write_array(area: &mut [u8], at: Option<&Bits>, bytes: &[u8]) {
    let place = at.and_then(|at| area.get_mut(at.span())).unwrap_or_default();
    for (byte, value) in place.iter_mut().zip(bytes) {
        *byte = *value;
    }
}

/// Returns the bytes of a structure within a message, such as a path.
pub(super) fn part<'a>(area: &'a [u8], at: &[Bits]) -> Result<&'a [u8], MadError> {
    at.first().ok_or(MadError::Length)?.bytes(area)
}

pub(super) fn part_mut<'a>(area: &'a mut [u8], at: &[Bits]) -> &'a mut [u8] {
    at.first().and_then(|at| area.get_mut(at.span())).unwrap_or_default()
}

impl Field for Gid {
    fn read(area: &[u8], at: &[Bits]) -> Result<Self, MadError> {
        read_array(area, at.first()).map(Self)
    }

    fn write(&self, area: &mut [u8], at: &[Bits]) {
        write_array(area, at.first(), &self.0);
    }
}

/// Implements `Number` for types that `$new` makes of an integer, and `$get` turns back into it.
macro_rules! numbers {
    ($($type:ty, $int:ty: $new:expr, $get:expr;)+) => {$(
        impl $crate::cm::bits::Number for $type {
            fn from_number(number: u64) -> Self {
                $new(number as $int)
            }

            fn to_number(&self) -> u64 {
                u64::from($get(*self))
            }
        }
    )+};
}

/// A struct with a line per field: name, type and pieces `[byte, bit, width]`.
macro_rules! layout {
    ($(#[$meta:meta])* $vis:vis struct $name:ident of $room:literal bytes {
        $($(#[$doc:meta])* $field:ident: $type:ty = $([$byte:literal, $bit:literal, $width:literal])+;)+
    }) => {
        $(#[$meta])*
        $vis struct $name {
            $(
                $(#[$doc])*
                #[doc = ""]
                #[doc = concat!("On the wire", $(": byte ", $byte, ", bit ", $bit, ", ", $width, " bits"),+, ".")]
                $vis $field: $type,
            )+
        }

        impl $crate::cm::bits::Field for $name {
            fn read(area: &[u8], at: &[$crate::cm::bits::Bits]) -> Result<Self, $crate::cm::bits::MadError> {
                use $crate::cm::bits::{Bits, Field, part};
                let area = part(area, at)?;
                Ok(Self { $($field: Field::read(area, const { &[$(Bits::new($room, $byte, $bit, $width)),+] })?,)+ })
            }

            fn write(&self, area: &mut [u8], at: &[$crate::cm::bits::Bits]) {
                use $crate::cm::bits::{Bits, Field, part_mut};
                let area = part_mut(area, at);
                $(Field::write(&self.$field, area, const { &[$(Bits::new($room, $byte, $bit, $width)),+] });)+
            }
        }
    };
}

pub(super) use {layout, numbers};

numbers! {
    bool, u8: |bit| bit != 0, u8::from;
    u8, u8: u8::from, u8::from;
    u16, u16: u16::from, u16::from;
    u32, u32: u32::from, u32::from;
    Qpn, u32: Qpn::new, Qpn::get;
    Psn, u32: Psn::new, Psn::get;
    Qkey, u32: Qkey, |key: Qkey| key.0;
    Pkey, u16: Pkey, |key: Pkey| key.0;
}

/// Reason why bytes are not a message of the connection manager. Such packets are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MadError {
    /// The MAD does not have 256 bytes.
    Length,
    /// The base version of the MAD is not 1.
    BaseVersion,
    /// The management class is not communication management.
    Class,
    /// The version of the class is not 2.
    ClassVersion,
    /// The method is not "Send".
    Method,
    /// The attribute id is unknown.
    Attribute,
    /// The additional information is longer than its field.
    InfoLength,
}

impl MadError {
    /// All errors, for counters.
    pub const ALL: [Self; 7] = [
        Self::Length,
        Self::BaseVersion,
        Self::Class,
        Self::ClassVersion,
        Self::Method,
        Self::Attribute,
        Self::InfoLength,
    ];

    /// Returns a short name for counters and logs.
    pub const fn name(self) -> &'static str {
        self.name_and_meaning().0
    }

    /// Returns the meaning of the reason, for users.
    pub const fn meaning(self) -> &'static str {
        self.name_and_meaning().1
    }

    const fn name_and_meaning(self) -> (&'static str, &'static str) {
        match self {
            Self::Length => ("mad_length", "the length of the MAD is not 256 bytes"),
            Self::BaseVersion => ("mad_base_version", "the base version of the MAD is not 1"),
            Self::Class => ("mad_class", "the class of the MAD is not connection management"),
            Self::ClassVersion => ("mad_class_version", "the class version of the MAD is not 2"),
            Self::Method => ("mad_method", "the method of the MAD is not Send"),
            Self::Attribute => ("mad_attribute", "the attribute of the MAD is unknown"),
            Self::InfoLength => ("mad_info_length", "the additional information is longer than its field"),
        }
    }
}

impl fmt::Display for MadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.meaning())
    }
}

impl core::error::Error for MadError {}
