//! Memory regions of the agent, and memory windows.

use super::{Pd, check, check_pointer, missing, owned};
use crate::protocol::Refusal;
use core::ffi::{c_int, c_void};
use core::{mem, ptr};
use roxe_abi::*;
use std::cell::Cell;
use std::io;
use std::rc::Rc;

/// `IBV_REREG_MR_CHANGE_ACCESS`.
const REREG_ACCESS: c_int = 1 << 2;

/// The pages of one region. The card may write to them at any time, so their bytes are copied,
/// never borrowed.
struct Pages {
    begin: *mut u8,
    len: usize,
}

impl Pages {
    fn map(len: usize) -> Result<Self, Refusal> {
        Self::map_at(ptr::null_mut(), len, 0)
    }

    /// Maps `len` bytes so that the address of byte `edge` is a multiple of 4 GiB.
    fn map_across_edge(len: usize, edge: usize) -> Result<Self, Refusal> {
        // Addresses below 16 TiB are free in most processes.
        let multiples = (256..4096_usize).map(|upper_half| upper_half << 32);
        let mut addresses = multiples.filter_map(|at| Some(ptr::without_provenance_mut(at.checked_sub(edge)?)));
        // Kernels before 4.17 ignore MAP_FIXED_NOREPLACE, and choose another address if `at` is in
        // use.
        let map = |at| Self::map_at(at, len, libc::MAP_FIXED_NOREPLACE).ok().filter(|pages| pages.begin.cast() == at);
        let mapped = addresses.find_map(map);
        mapped.ok_or_else(|| Refusal::invalid(format!("no {len} bytes are free around a multiple of 4 GiB")))
    }

    fn map_at(at: *mut c_void, len: usize, extra_flags: c_int) -> Result<Self, Refusal> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: maps new pages and replaces none: the kernel chooses the address if `at` is null,
        // and MAP_FIXED_NOREPLACE refuses one that is in use.
        let begin = unsafe { libc::mmap(at, len, protection, flags | extra_flags, -1, 0) };
        if begin == libc::MAP_FAILED {
            return Err(Refusal::os("mmap", &io::Error::last_os_error()));
        }
        Ok(Self { begin: begin.cast(), len })
    }

    fn pointer(&self, offset: usize, len: usize) -> Result<*mut u8, Refusal> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            let text = format!("{len} bytes at offset {offset} exceed the region of {} bytes", self.len);
            return Err(Refusal::invalid(text));
        }
        Ok(self.begin.wrapping_add(offset))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `map_at` mapped the pages, and no address in them is used after this call.
        unsafe { libc::munmap(self.begin.cast(), self.len) };
    }
}

pub(crate) struct Mr {
    pub(crate) raw: *mut ibv_mr,
    pages: Option<Pages>,
    pd: Rc<Pd>,
}

impl Mr {
    /// Registers `len` new bytes, filled with repetitions of `fill`. The address of byte `edge` is
    /// a multiple of 4 GiB.
    pub(crate) fn register(
        pd: &Rc<Pd>,
        len: usize,
        access: u32,
        fill: &[u8],
        edge: Option<usize>,
    ) -> Result<Self, Refusal> {
        let pages = edge.map_or_else(|| Pages::map(len), |edge| Pages::map_across_edge(len, edge))?;
        // New pages are zero, so a fill of zeros is not copied.
        for offset in (0..len).step_by(fill.len().max(1)).take_while(|_| fill.iter().any(|byte| *byte != 0)) {
            let count = fill.len().min(len - offset);
            // SAFETY: the destination is within `pages`, which are mapped, and does not overlap
            // `fill`.
            unsafe { ptr::copy_nonoverlapping(fill.as_ptr(), pages.begin.wrapping_add(offset), count) };
        }
        let access = c_int::try_from(access).map_err(|_| Refusal::invalid("access is too large"))?;
        let begin = pages.begin.cast::<c_void>();
        // SAFETY: `pd.raw` is valid while `pd` is held; `pages` stay mapped until the region is
        // deregistered.
        let raw = unsafe { (pd.context.library.ibv_reg_mr)(pd.raw, begin, len, access) };
        Ok(Self { raw: check_pointer("ibv_reg_mr", raw)?, pages: Some(pages), pd: Rc::clone(pd) })
    }

    fn pages(&self) -> Result<&Pages, Refusal> {
        self.pages.as_ref().ok_or_else(|| Refusal::invalid("the region has been deregistered"))
    }

    pub(crate) fn len(&self) -> usize {
        self.pages.as_ref().map_or(0, |pages| pages.len)
    }

    /// Returns the address of `len` bytes at `offset`, as the card uses it.
    pub(crate) fn addr(&self, offset: usize, len: usize) -> Result<u64, Refusal> {
        Ok(self.pages()?.pointer(offset, len)?.addr() as u64)
    }

    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: `self.raw` is a registered region until `destroy`.
        unsafe { (*self.raw).lkey }
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: `self.raw` is a registered region until `destroy`.
        unsafe { (*self.raw).rkey }
    }

    /// Changes the rights; the card may change the keys.
    pub(crate) fn set_access(&self, access: u32) -> Result<(), Refusal> {
        self.pages()?;
        let access = c_int::try_from(access).map_err(|_| Refusal::invalid("access is too large"))?;
        let reregister = self.pd.context.library.ibv_rereg_mr;
        // SAFETY: `self.raw` is a registered region until `destroy`; with this flag alone the verb
        // does not use the domain and the address.
        let code = unsafe { reregister(self.raw, REREG_ACCESS, ptr::null_mut(), ptr::null_mut(), 0, access) };
        // The verb returns `IBV_REREG_MR_ERR_...`, which is not an errno; the cause is in `errno`.
        check("ibv_rereg_mr", if code == 0 { 0 } else { -1 })
    }

    pub(crate) fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>, Refusal> {
        let from = self.pages()?.pointer(offset, len)?;
        let mut bytes = vec![0_u8; len];
        // SAFETY: the source is within the pages, which stay mapped during the call. A byte that
        // the card writes meanwhile has its old or its new value.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len) };
        Ok(bytes)
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Refusal> {
        let to = self.pages()?.pointer(offset, bytes.len())?;
        // SAFETY: the destination is within the pages, which stay mapped during the call, and does
        // not overlap `bytes`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    pub(crate) fn destroy(&mut self) -> Result<(), Refusal> {
        let raw = mem::replace(&mut self.raw, ptr::null_mut());
        if raw.is_null() {
            return Ok(());
        }
        // SAFETY: `raw` is a registered region, and it is not used after this call.
        let result = check("ibv_dereg_mr", unsafe { (self.pd.context.library.ibv_dereg_mr)(raw) });
        if result.is_err() {
            // The card may still use the pages, so they are leaked.
            mem::forget(self.pages.take());
        }
        result
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // A destructor cannot report an error.
        let _ = self.destroy();
    }
}

pub(crate) struct Mw {
    pub(crate) raw: *mut ibv_mw,
    pub(super) pd: Rc<Pd>,
    /// The region of the last binding, which must not be deregistered before the window.
    pub(super) bound: Cell<Option<Rc<Mr>>>,
}

impl Mw {
    pub(crate) fn alloc(pd: &Rc<Pd>, kind: u32) -> Result<Self, Refusal> {
        let alloc = pd.context.ops().alloc_mw.ok_or_else(|| missing("ibv_alloc_mw"))?;
        // SAFETY: `pd.raw` is valid while `pd` is held.
        let raw = unsafe { alloc(pd.raw, kind) };
        Ok(Self { raw: check_pointer("ibv_alloc_mw", raw)?, pd: Rc::clone(pd), bound: Cell::new(None) })
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: `self.raw` is a valid window until `destroy`.
        unsafe { (*self.raw).rkey }
    }

    pub(super) fn set_rkey(&self, rkey: u32) {
        // SAFETY: `self.raw` is a valid window until `destroy`; programs may write its key (`man
        // ibv_bind_mw`).
        unsafe { (*self.raw).rkey = rkey };
    }

    pub(crate) fn kind(&self) -> u32 {
        // SAFETY: `self.raw` is a valid window until `destroy`.
        unsafe { (*self.raw).mw_type }
    }
}

owned! {
    Mw by ibv_dealloc_mw = |mw| mw.pd.context.ops().dealloc_mw;
}
