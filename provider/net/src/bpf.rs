//! Instructions of classic BPF used by our kernel programs (<linux/bpf_common.h>).

use libc::sock_filter;

pub(super) const LOAD_WORD: u16 = 0x20;
pub(super) const LOAD_HALF: u16 = 0x28;
pub(super) const LOAD_BYTE: u16 = 0x30;
pub(super) const AND: u16 = 0x54;
pub(super) const SHIFT_RIGHT: u16 = 0x74;
pub(super) const JUMP: u16 = 0x05;
pub(super) const JUMP_EQ: u16 = 0x15;
pub(super) const JUMP_GE: u16 = 0x35;
pub(super) const JUMP_SET: u16 = 0x45;
pub(super) const RETURN: u16 = 0x06;
pub(super) const RETURN_A: u16 = 0x16;

pub(super) const MAX_LEN: usize = 4096;

/// Accepts the whole packet.
pub(super) const PASS: sock_filter = op(RETURN, u32::MAX);
/// Drops the packet.
pub(super) const DROP: sock_filter = op(RETURN, 0);

/// Creates an instruction without branch.
pub(super) const fn op(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// Skips `jt` instructions if the comparison holds, else `jf`.
pub(super) const fn jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}
