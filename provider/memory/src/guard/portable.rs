//! Guarded access through system calls, for processors without assembly in `asm`: slower, with the
//! same guarantees.
//!
//! The kernel copies within this process, and returns EFAULT where a load would raise a signal. One
//! limit: an atomic first makes the kernel populate the page and then uses an atomic instruction. A
//! program that unmaps the page in between is killed by the fault.

use super::bytes::Fault;
use crate::mapped::page_size;
use roxe_transport::cx::AtomicOp;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

pub(super) fn read(addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
    let ours = libc::iovec { iov_base: out.as_ptr().cast_mut().cast(), iov_len: out.len() };
    let theirs = libc::iovec { iov_base: addr as *mut c_void, iov_len: out.len() };
    // SAFETY: both vectors outlive the call; `ours` is valid for writing, because atomics may
    // change behind a shared reference, and the kernel checks `theirs`.
    let n = unsafe { libc::process_vm_readv(libc::getpid(), &raw const ours, 1, &raw const theirs, 1, 0) };
    if usize::try_from(n) == Ok(out.len()) { Ok(()) } else { Err(Fault) }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn read_shared(addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
    read(addr, out)
}

/// Copies without computing the CRC.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn read_summed(addr: u64, out: &[AtomicU8]) -> Result<Option<super::bytes::Sum>, Fault> {
    read(addr, out).map(|()| None)
}

pub(super) fn write(addr: u64, data: &[u8]) -> Result<(), Fault> {
    let end = addr.checked_add(data.len() as u64).ok_or(Fault)?;
    // The last aligned word is written last, by a separate call.
    let tail = (((end.wrapping_sub(1) & 7) + 1) as usize).min(data.len());
    let (head, tail) = data.split_at(data.len() - tail);
    write_once(addr, head)?;
    write_once(addr + head.len() as u64, tail)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn write_shared(addr: u64, data: super::bytes::SharedBytes<'_>) -> Result<(), Fault> {
    let mut copy = vec![0; data.len()];
    data.copy_to(&mut copy)?;
    write(addr, &copy)
}

fn write_once(addr: u64, data: &[u8]) -> Result<(), Fault> {
    if data.is_empty() {
        return Ok(());
    }
    let ours = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    let theirs = libc::iovec { iov_base: addr as *mut c_void, iov_len: data.len() };
    // SAFETY: both vectors outlive the call; `ours` is only read, and the kernel checks `theirs`.
    let n = unsafe { libc::process_vm_writev(libc::getpid(), &raw const ours, 1, &raw const theirs, 1, 0) };
    if usize::try_from(n) == Ok(data.len()) { Ok(()) } else { Err(Fault) }
}

pub(super) fn atomic(addr: u64, op: AtomicOp) -> Result<u64, Fault> {
    with_word(addr, |word| match op {
        AtomicOp::CompareSwap { compare, swap } => {
            word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|old| old)
        }
        AtomicOp::FetchAdd { add } => word.fetch_add(add, Ordering::SeqCst),
    })
}

pub(super) fn store(addr: u64, word: [u8; 8]) -> Result<(), Fault> {
    with_word(addr, |at| at.store(u64::from_ne_bytes(word), Ordering::SeqCst))
}

/// Makes the aligned word at `addr` present and writable, and returns the result of `f` on it.
fn with_word<T>(addr: u64, f: impl FnOnce(&AtomicU64) -> T) -> Result<T, Fault> {
    let page = page_size();
    // SAFETY: changes no contents; the kernel checks the address.
    let rc = unsafe { libc::madvise((addr & !(page - 1)) as *mut c_void, page as usize, libc::MADV_POPULATE_WRITE) };
    if rc != 0 {
        return Err(Fault);
    }
    // SAFETY: aligned (callers check), and just found mapped and writable; the program must access
    // it atomically meanwhile.
    Ok(f(unsafe { AtomicU64::from_ptr(addr as *mut u64) }))
}
