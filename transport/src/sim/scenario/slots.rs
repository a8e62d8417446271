//! Sizes of the regions and slots that random work touches.

use crate::qp::GRH_LEN;

/// Guard bytes behind each landing slot; they must stay as they are.
pub(super) const GUARD: u32 = 16;

/// Bytes, more than the longest message has, that regions are made of.
pub(super) fn room(max_len: u32) -> u32 {
    (max_len + 1).next_multiple_of(1024)
}

/// Bytes between the starts of two slots.
pub(super) fn slot_size(max_len: u32) -> u32 {
    max_len.max(8) + GRH_LEN + GUARD
}

/// `len` bytes from `start`.
pub(super) fn range(bytes: &[u8], start: u32, len: u32) -> &[u8] {
    &bytes[start as usize..(start + len) as usize]
}
