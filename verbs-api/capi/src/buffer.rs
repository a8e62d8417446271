//! Buffers that the library allocates (`man ibv_alloc_buf`), and the registration call that takes
//! all kinds of memory (`man ibv_reg_mr`, `ibv_reg_mr_ex`).
//!
//! A buffer is anonymous memory of the process, page by page; it is no DMA-buf, so there is no
//! descriptor to export.

use crate::abi::{ibv_buf, ibv_mr, ibv_mr_init_attr, ibv_pd};
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result, minus_one, pointer, silent};
use crate::memory::{ibv_reg_dmabuf_mr, ibv_reg_mr_iova};
use crate::object::{Object, Token, exposed};
use crate::objects::pd;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use roxe_provider::Use;

/// `IBV_REG_MR_MASK_*`.
const MASK_IOVA: u64 = 1;
const MASK_ADDR: u64 = 1 << 1;
const MASK_FD: u64 = 1 << 2;
const MASK_FD_OFFSET: u64 = 1 << 3;
const MASK_DMAH: u64 = 1 << 4;
const MASK_BUF: u64 = 1 << 5;

exposed! {
    ibv_buf => ibv_buf: Buffer;
}

/// The Rust part of a buffer.
pub(crate) struct Buffer {
    memory: Mapping,
    /// The handle of the domain that it was allocated for, which is compared only.
    domain: usize,
    /// Keeps the domain busy.
    _in_use: Use,
}

/// Anonymous memory, unmapped when dropped.
struct Mapping {
    start: *mut c_void,
    length: usize,
}

// SAFETY: the memory belongs to the program; here it is only mapped and unmapped, which any thread
// may do.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(length: usize) -> Result<Self> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at no given address.
        let start = unsafe { libc::mmap(null_mut(), length, prot, flags, -1, 0) };
        if start == libc::MAP_FAILED { Err(Errno(libc::ENOMEM)) } else { Ok(Self { start, length }) }
    }

    fn contains(&self, addr: *mut c_void, length: usize) -> bool {
        let offset = addr.addr().checked_sub(self.start.addr());
        offset.and_then(|offset| offset.checked_add(length)).is_some_and(|end| end <= self.length)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and unmapped once.
        unsafe { libc::munmap(self.start, self.length) };
    }
}

/// `man ibv_alloc_buf`. EINVAL for no bytes; the domain is EBUSY until the buffer is freed.
pub(crate) unsafe extern "C" fn ibv_alloc_buf(handle: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void {
    pointer(|| {
        let _in_use = pd(handle)?.hold();
        if buf.is_null() || size == 0 {
            return Err(EINVAL);
        }
        let memory = Mapping::new(size)?;
        let start = memory.start;
        let buffer = Buffer { memory, domain: handle.addr(), _in_use };
        let object = Object::publish(Token::new(), ibv_buf { addr: start }, buffer);
        // SAFETY: not NULL; a variable of the program.
        unsafe { buf.write(object) };
        Ok(start)
    })
}

/// `man ibv_alloc_buf`.
pub(crate) unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    silent(|| Object::<ibv_buf>::retire(buf).map(drop));
}

/// EINVAL unless `length` bytes from `addr` on are of the buffer, and the buffer of this domain.
fn check(handle: *mut ibv_pd, buf: *mut ibv_buf, addr: *mut c_void, length: usize) -> Result<()> {
    let buffer = &Object::<ibv_buf>::live(buf)?.inner;
    let fits = buffer.domain == handle.addr() && buffer.memory.contains(addr, length);
    if fits { Ok(()) } else { Err(EINVAL) }
}

/// `man ibv_alloc_buf`.
pub(crate) unsafe extern "C" fn ibv_reg_buf_mr(
    handle: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    pointer(|| {
        check(handle, buf, addr, length)?;
        // SAFETY: the program's arguments.
        Ok(unsafe { ibv_reg_mr_iova(handle, addr, length, addr.addr() as u64, access) })
    })
}

/// `man ibv_alloc_buf`: ENODATA, which says that a buffer is no DMA-buf.
pub(crate) unsafe extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    minus_one(|| {
        Object::<ibv_buf>::live(buf)?;
        Err(Errno(libc::ENODATA))
    })
}

/// `man ibv_reg_mr`. EOPNOTSUPP with a DMA handle, as there are none.
pub(crate) unsafe extern "C" fn ibv_reg_mr_ex(handle: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    pointer(|| {
        if attr.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: a structure of the program.
        let comp_mask = unsafe { (*attr).comp_mask };
        let given = |bit| comp_mask & bit != 0;
        if comp_mask & !(MASK_IOVA | MASK_ADDR | MASK_FD | MASK_FD_OFFSET | MASK_DMAH | MASK_BUF) != 0
            || given(MASK_ADDR) == given(MASK_FD)
            || (given(MASK_FD_OFFSET) && !given(MASK_FD))
            || (given(MASK_BUF) && given(MASK_FD))
        {
            return Err(EINVAL);
        }
        if given(MASK_DMAH) {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: as above. Only the fields that the mask names are used: a program that was built
        // with earlier headers has a shorter structure.
        let (length, access, addr) = unsafe { ((*attr).length, (*attr).access, (*attr).addr) };
        if given(MASK_BUF) {
            // SAFETY: as above; the mask names the last field.
            check(handle, unsafe { (*attr).buf }, addr, length)?;
        }
        // SAFETY: as above.
        Ok(unsafe {
            let offset = if given(MASK_FD_OFFSET) { (*attr).fd_offset } else { 0 };
            let usual = if given(MASK_FD) { offset } else { addr.addr() as u64 };
            let iova = if given(MASK_IOVA) { (*attr).iova } else { usual };
            if given(MASK_FD) {
                ibv_reg_dmabuf_mr(handle, offset, length, iova, (*attr).fd, access)
            } else {
                ibv_reg_mr_iova(handle, addr, length, iova, access)
            }
        })
    })
}
