//! Access to memory under Miri, which can neither run assembly nor make the system calls of
//! `portable`.
//!
//! Copies byte by byte, atomically, so that concurrent changes are not data races. Miri checks
//! every address. No access returns [`Fault`]: Miri ends the test at a bad address.

use super::bytes::{Fault, SharedBytes, Sum};
use roxe_transport::cx::AtomicOp;
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

fn byte<'a>(addr: u64) -> &'a AtomicU8 {
    // SAFETY: tests pass addresses of their own memory, which stays allocated during the access and
    // is accessed atomically meanwhile; Miri checks both.
    unsafe { AtomicU8::from_ptr(ptr::with_exposed_provenance_mut(addr as usize)) }
}

fn word<'a>(addr: u64) -> &'a AtomicU64 {
    // SAFETY: as in `byte`; callers check that `addr` is a multiple of 8.
    unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(addr as usize)) }
}

pub(super) fn read(addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
    out.iter().zip(addr..).for_each(|(out, at)| out.store(byte(at).load(Ordering::Relaxed), Ordering::Relaxed));
    Ok(())
}

pub(super) fn read_shared(addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
    read(addr, out)
}

pub(super) fn read_summed(addr: u64, out: &[AtomicU8]) -> Result<Option<Sum>, Fault> {
    read(addr, out).map(|()| None)
}

pub(super) fn write(addr: u64, data: &[u8]) -> Result<(), Fault> {
    data.iter().zip(addr..).for_each(|(data, at)| byte(at).store(*data, Ordering::Relaxed));
    Ok(())
}

pub(super) fn write_shared(addr: u64, data: SharedBytes<'_>) -> Result<(), Fault> {
    let mut copy = vec![0; data.len()];
    data.copy_to(&mut copy)?;
    write(addr, &copy)
}

pub(super) fn atomic(addr: u64, op: AtomicOp) -> Result<u64, Fault> {
    let word = word(addr);
    Ok(match op {
        AtomicOp::CompareSwap { compare, swap } => {
            word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|old| old)
        }
        AtomicOp::FetchAdd { add } => word.fetch_add(add, Ordering::SeqCst),
    })
}

pub(super) fn store(addr: u64, bytes: [u8; 8]) -> Result<(), Fault> {
    word(addr).store(u64::from_ne_bytes(bytes), Ordering::SeqCst);
    Ok(())
}
