//! Memory: regions (registration, import, advice), buffers that the library allocates (`man
//! ibv_alloc_buf`), device memory (`man ibv_alloc_dm`), windows (`man ibv_alloc_mw`), fork calls.
//!
//! A buffer is anonymous memory, not a DMA-buf, so it has no descriptor to export. An import looks
//! up a region of this process by its number: a region of another process cannot be imported.

use crate::abi::*;
use crate::errno::{
    EINVAL, EOPNOTSUPP, Errno, Result, einval, invalid, minus_one, no_comp_mask, no_result, null, out_of_range,
    pointer, required, status, zero,
};
use crate::object::{Object, Token, exposed};
use crate::objects::{context, context_of, pd};
use crate::wr_batch::sge;
use crate::{objects, undefined};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr::null_mut;
use roxe_provider::{Access, Advice, Dm, DmaBuf, Mr, MrChange, Mw, MwKind, Sge, Use};
use roxe_transport::wr::{SendData, SendFlags, SendOp, SendRequest};
use roxe_wire::{LKey, RKey};
use std::sync::Arc;

/// `IBV_ACCESS_OPTIONAL_RANGE`: access bits that are hints; unknown ones are ignored.
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;
/// `IBV_REREG_MR_CHANGE_TRANSLATION`, `_PD`, `_ACCESS`.
const REREG_TRANSLATION: c_int = 1;
const REREG_PD: c_int = 2;
const REREG_ACCESS: c_int = 4;
/// `IBV_FORK_UNNEEDED`: the device reads the process's own memory, so fork needs no preparation.
const FORK_UNNEEDED: c_int = 2;

/// Converts access rights. Ignores unknown hints, refuses other unknown bits.
pub(crate) fn access(bits: u32) -> Result<Access> {
    let known = bits & (Access::all().bits() | !OPTIONAL_ACCESS);
    Access::from_bits(known).ok_or_else(|| undefined::access(EINVAL, "the registration of memory", ("access", bits)))
}

fn register(handle: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, bits: u32) -> Result<*mut ibv_mr> {
    let (pd, access) = (pd(handle)?, access(bits)?);
    // SAFETY: the program keeps the memory valid until it deregisters the region (`man
    // ibv_reg_mr`).
    let mr = unsafe { pd.reg_mr(addr.addr() as u64, length as u64, iova, access) }?;
    publish(handle, addr, length, mr)
}

pub(crate) fn publish(handle: *mut ibv_pd, addr: *mut c_void, length: usize, mr: Arc<Mr>) -> Result<*mut ibv_mr> {
    let (context, lkey, rkey) = (context_of(handle)?, mr.lkey().0, mr.rkey().0);
    Ok(Object::publish_numbered(mr, |number| ibv_mr { context, pd: handle, addr, length, handle: number, lkey, rkey }))
}

pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    pointer(|| register(pd, addr, length, addr.addr() as u64, access.cast_unsigned()))
}

/// `man ibv_reg_mr`.
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    pointer(|| register(pd, addr, length, iova, access.cast_unsigned()))
}

/// Registers memory for the header's macros `ibv_reg_mr` and `ibv_reg_mr_iova`, which call this
/// function if the rights are not constant or contain hints.
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    pointer(|| register(pd, addr, length, iova, access))
}

/// `man ibv_reg_mr`. The structure shows `offset` as its address.
pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    handle: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    bits: c_int,
) -> *mut ibv_mr {
    pointer(|| {
        let part = DmaBuf { fd, offset, length: length as u64 };
        let mr = pd(handle)?.reg_dmabuf_mr(part, iova, access(bits.cast_unsigned())?)?;
        let addr =
            usize::try_from(offset).map_err(|_| invalid(|| format!("offset {offset:#x} exceeds the address space")))?;
        publish(handle, core::ptr::without_provenance_mut(addr), length, mr)
    })
}

/// `man ibv_alloc_null_mr`. The structure shows no rkey.
pub(crate) unsafe extern "C" fn alloc_null_mr(handle: *mut ibv_pd) -> *mut ibv_mr {
    pointer(|| {
        let mr = publish(handle, null_mut(), usize::MAX, pd(handle)?.alloc_null_mr()?)?;
        // SAFETY: `publish` has just returned this object, and the program does not have it yet.
        unsafe { (&raw mut (*mr).rkey).write(0) };
        Ok(mr)
    })
}

fn mr_change(flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize, bits: u32) -> Result<MrChange> {
    let given = |bit| flags & bit != 0;
    if flags == 0 || flags & !(REREG_TRANSLATION | REREG_PD | REREG_ACCESS) != 0 || (bits != 0 && !given(REREG_ACCESS))
    {
        return Err(invalid(|| {
            format!(
                "flags is {flags:#x}, access {bits:#x}; accepted are the bits of enum ibv_rereg_mr_flags, 1 to 7, \
                     and access only with IBV_REREG_MR_CHANGE_ACCESS"
            )
        }));
    }
    if given(REREG_TRANSLATION) && (addr.is_null() || length == 0) {
        return Err(invalid(|| {
            format!("IBV_REREG_MR_CHANGE_TRANSLATION needs an addr and a length; they are {addr:p} and {length}")
        }));
    }
    Ok(MrChange {
        pd: given(REREG_PD).then(|| objects::pd(pd).cloned()).transpose()?,
        range: given(REREG_TRANSLATION).then_some((addr.addr() as u64, length as u64)),
        access: given(REREG_ACCESS).then(|| access(bits)).transpose()?,
    })
}

/// `man ibv_rereg_mr`. Every failure is -1, `IBV_REREG_MR_ERR_INPUT`: the old region stays valid.
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    handle: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    zero(|| {
        let object = Object::<ibv_mr>::live(handle)?;
        let change = mr_change(flags, pd, addr, length, access.cast_unsigned())?;
        // SAFETY: the program keeps the memory valid until it deregisters the region (`man
        // ibv_reg_mr`).
        unsafe { object.inner.reregister(change) }?;
        let exposed = object.exposed();
        // SAFETY: `live` found the object; the program serialises calls that change one region.
        unsafe {
            if flags & REREG_TRANSLATION != 0 {
                (&raw mut (*exposed).addr).write(addr);
                (&raw mut (*exposed).length).write(length);
            }
            if flags & REREG_PD != 0 {
                (&raw mut (*exposed).pd).write(pd);
            }
        }
        Ok(())
    })
}

/// `man ibv_reg_mr`. After it returns, no peer and no engine accesses the memory.
pub(crate) unsafe extern "C" fn ibv_dereg_mr(handle: *mut ibv_mr) -> c_int {
    status(|| Object::<ibv_mr>::destroy(handle, |mr| mr.deregister()))
}

/// `man ibv_fork_init`: cannot fail, because a fork needs no preparation.
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    roxe_check::note_fork_support();
    0
}

pub(crate) extern "C" fn ibv_is_fork_initialized() -> c_int {
    roxe_check::note_fork_support();
    FORK_UNNEEDED
}

/// Keeps a range out of child processes; has no effect, because a fork needs no preparation.
pub(crate) extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

pub(crate) extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// `IBV_REG_MR_MASK_*`: fields of `ibv_mr_init_attr` that the program has set.
const MASK_IOVA: u64 = 1;
const MASK_ADDR: u64 = 1 << 1;
const MASK_FD: u64 = 1 << 2;
const MASK_FD_OFFSET: u64 = 1 << 3;
const MASK_DMAH: u64 = 1 << 4;
const MASK_BUF: u64 = 1 << 5;

exposed! {
    ibv_buf => ibv_buf: Buffer;
}

/// A buffer of `ibv_alloc_buf`.
pub(crate) struct Buffer {
    memory: Mapping,
    /// Address of the domain's handle, only compared.
    pd_handle: usize,
    /// Makes deallocating the domain fail with EBUSY.
    _pd_use: Use,
}

/// Mapped memory, unmapped on drop.
struct Mapping {
    start: *mut c_void,
    /// Length in bytes.
    length: usize,
}

// SAFETY: `Mapping` never accesses the memory; it unmaps it, which any thread may do.
unsafe impl Send for Mapping {}
// SAFETY: `Mapping` never accesses the memory, and a shared reference changes nothing.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(length: usize) -> Result<Self> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping, at an address that the kernel chooses.
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
        // SAFETY: `new` mapped this range, and only `drop` unmaps it. The program uses the buffer
        // no more after `ibv_free_buf`.
        unsafe { libc::munmap(self.start, self.length) };
    }
}

/// `man ibv_alloc_buf`. Fails with EINVAL for no bytes; the domain is EBUSY until the buffer is
/// freed.
pub(crate) unsafe extern "C" fn ibv_alloc_buf(handle: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void {
    pointer(|| {
        let _pd_use = pd(handle)?.hold();
        if buf.is_null() || size == 0 {
            return Err(EINVAL);
        }
        let memory = Mapping::new(size)?;
        let start = memory.start;
        let buffer = Buffer { memory, pd_handle: handle.addr(), _pd_use };
        let object = Object::publish(Token::new(), ibv_buf { addr: start }, buffer);
        // SAFETY: not NULL; the program passes a variable that is valid during the call.
        unsafe { buf.write(object) };
        Ok(start)
    })
}

/// `man ibv_alloc_buf`.
pub(crate) unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    no_result(|| Object::<ibv_buf>::retire(buf).map(drop));
}

/// Returns EINVAL unless the buffer belongs to this domain and contains the range.
fn check_buffer_range(handle: *mut ibv_pd, buf: *mut ibv_buf, addr: *mut c_void, length: usize) -> Result<()> {
    let buffer = &Object::<ibv_buf>::live(buf)?.inner;
    let fits = buffer.pd_handle == handle.addr() && buffer.memory.contains(addr, length);
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
        check_buffer_range(handle, buf, addr, length)?;
        // SAFETY: `ibv_reg_mr_iova` checks the handle. The memory is part of the buffer, which the
        // program frees after it has deregistered the region.
        Ok(unsafe { ibv_reg_mr_iova(handle, addr, length, addr.addr() as u64, access) })
    })
}

/// `man ibv_alloc_buf`: ENODATA means that a buffer is not a DMA-buf.
pub(crate) unsafe extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    minus_one(|| {
        Object::<ibv_buf>::live(buf)?;
        Err(Errno(libc::ENODATA))
    })
}

/// `man ibv_reg_mr`. Fails with EOPNOTSUPP for a DMA handle, because the device has none.
pub(crate) unsafe extern "C" fn ibv_reg_mr_ex(handle: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    pointer(|| {
        if attr.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: not NULL; the program passes a structure that is valid during the call.
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
        // SAFETY: these fields are in the structure of every header version. Other fields are read
        // only if the mask selects them, because programs built with earlier headers pass a shorter
        // structure.
        let (length, access, addr) = unsafe { ((*attr).length, (*attr).access, (*attr).addr) };
        if given(MASK_BUF) {
            // SAFETY: the mask selects the field, so the program's structure has it.
            check_buffer_range(handle, unsafe { (*attr).buf }, addr, length)?;
        }
        // SAFETY: the program's structure has the fields that the mask selects. The two functions
        // check the handle, and the program keeps the memory valid until it deregisters the region.
        Ok(unsafe {
            let offset = if given(MASK_FD_OFFSET) { (*attr).fd_offset } else { 0 };
            let default_iova = if given(MASK_FD) { offset } else { addr.addr() as u64 };
            let iova = if given(MASK_IOVA) { (*attr).iova } else { default_iova };
            if given(MASK_FD) {
                ibv_reg_dmabuf_mr(handle, offset, length, iova, (*attr).fd, access)
            } else {
                ibv_reg_mr_iova(handle, addr, length, iova, access)
            }
        })
    })
}

/// `IBV_ADVISE_MR_FLAG_FLUSH`: return when the advice has taken effect, as this library always
/// does.
const ADVISE_FLUSH: u32 = 1;

fn advice(value: c_uint) -> Result<Advice> {
    match value {
        0 => Ok(Advice::Prefetch),
        1 => Ok(Advice::PrefetchWrite),
        2 => Ok(Advice::PrefetchNoFault),
        _ => Err(EOPNOTSUPP),
    }
}

pub(crate) unsafe extern "C" fn advise_mr(
    handle: *mut ibv_pd,
    value: c_uint,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    status(|| {
        let (pd, advice) = (pd(handle)?, advice(value)?);
        if flags & !ADVISE_FLUSH != 0 || (list.is_null() && count > 0) {
            return Err(EINVAL);
        }
        // SAFETY: not NULL if `count` is not 0; the program passes a list of `count` elements that
        // is valid during the call.
        let list: Vec<Sge> = (0..count as usize).map(|i| sge(unsafe { list.add(i).read() })).collect();
        Ok(pd.advise_mr(advice, &list)?)
    })
}

/// `man ibv_import_mr`: the structure's `addr` is NULL.
pub(crate) unsafe extern "C" fn ibv_import_mr(pd_handle: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr {
    pointer(|| {
        let pd = pd(pd_handle)?;
        let if_same_context =
            |found: &Arc<Mr>| Arc::ptr_eq(found.pd().context(), pd.context()).then(|| Arc::clone(found));
        let mr = Object::<ibv_mr>::by_number(mr_handle, if_same_context)?;
        let exposed = ibv_mr {
            context: context_of(pd_handle)?,
            pd: pd_handle,
            addr: null_mut(),
            length: usize::try_from(mr.length()).map_err(|_| EINVAL)?,
            handle: mr_handle,
            lkey: mr.lkey().0,
            rkey: mr.rkey().0,
        };
        Ok(Object::publish_numbered(mr, |_| exposed))
    })
}

/// `man ibv_import_mr`: releases only the handle.
pub(crate) unsafe extern "C" fn ibv_unimport_mr(handle: *mut ibv_mr) {
    no_result(|| Object::<ibv_mr>::retire(handle).map(drop));
}

/// `IBV_DM_MASK_HANDLE`: the structure has the field `handle`.
const MASK_HANDLE: u32 = 1;

fn dm_structure(context: *mut ibv_context, handle: u32) -> ibv_dm {
    let (memcpy_to_dm, memcpy_from_dm) = (Some(memcpy_to_dm as _), Some(memcpy_from_dm as _));
    ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask: MASK_HANDLE, handle }
}

pub(crate) unsafe extern "C" fn alloc_dm(handle: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    pointer(|| {
        let context = context(handle)?;
        let attr = required!(attr);
        no_comp_mask(attr.comp_mask)?;
        let dm = context.alloc_dm(attr.length as u64, attr.log_align_req)?;
        Ok(Object::publish_numbered(dm, |number| dm_structure(handle, number)))
    })
}

/// `man ibv_alloc_dm`: fails with EBUSY while a region is registered in it. Frees the memory for
/// imported handles too.
pub(crate) unsafe extern "C" fn free_dm(handle: *mut ibv_dm) -> c_int {
    status(|| Object::<ibv_dm>::destroy(handle, |dm| dm.free()))
}

/// `man ibv_alloc_dm`.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    handle: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    bits: c_uint,
) -> *mut ibv_mr {
    pointer(|| {
        let dm = &Object::<ibv_dm>::live(dm)?.inner;
        let mr = pd(handle)?.reg_dm_mr(dm, offset, length as u64, access(bits)?)?;
        publish(handle, null_mut(), length, mr)
    })
}

/// Returns the device memory of a copy. Fails with EINVAL if there is none, EFAULT if `host` is
/// NULL or `length` exceeds the device memory.
///
/// # Safety
/// `handle` is NULL or alive.
unsafe fn dm_of_copy<'a>(handle: *mut ibv_dm, host: *const c_void, length: usize) -> Result<&'a Dm> {
    // SAFETY: the caller guarantees NULL or a live handle.
    let dm = unsafe { Object::<ibv_dm>::trusted(handle) }.ok_or(EINVAL)?;
    if host.is_null() || length as u64 > dm.inner.length() {
        return Err(Errno(libc::EFAULT));
    }
    Ok(&dm.inner)
}

/// `man ibv_alloc_dm`: offset and length are multiples of 4.
unsafe extern "C" fn memcpy_to_dm(handle: *mut ibv_dm, offset: u64, host: *const c_void, length: usize) -> c_int {
    status(|| {
        // SAFETY: the program passes NULL or a handle that stays alive during the call.
        let dm = unsafe { dm_of_copy(handle, host, length) }?;
        // SAFETY: not NULL, and no longer than the device memory; the program passes `length`
        // readable bytes that are valid during the call.
        let data = unsafe { core::slice::from_raw_parts(host.cast::<u8>(), length) };
        Ok(dm.write(offset, data)?)
    })
}

/// `man ibv_alloc_dm`: offset and length are multiples of 4.
unsafe extern "C" fn memcpy_from_dm(host: *mut c_void, handle: *mut ibv_dm, offset: u64, length: usize) -> c_int {
    status(|| {
        // SAFETY: the program passes NULL or a handle that stays alive during the call.
        let dm = unsafe { dm_of_copy(handle, host, length) }?;
        // SAFETY: not NULL, and no longer than the device memory; the program passes `length`
        // writable bytes that are valid during the call.
        let out = unsafe { core::slice::from_raw_parts_mut(host.cast::<u8>(), length) };
        Ok(dm.read(offset, out)?)
    })
}

/// `man ibv_import_dm`: `dm_handle` is the number of device memory of the same context.
pub(crate) unsafe extern "C" fn ibv_import_dm(handle: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm {
    pointer(|| {
        let context = context(handle)?;
        let if_same_context = |found: &Arc<Dm>| Arc::ptr_eq(found.context(), context).then(|| Arc::clone(found));
        let dm = Object::<ibv_dm>::by_number(dm_handle, if_same_context)?;
        Ok(Object::publish_numbered(dm, |_| dm_structure(handle, dm_handle)))
    })
}

/// `man ibv_import_dm`: releases only the handle.
pub(crate) unsafe extern "C" fn ibv_unimport_dm(handle: *mut ibv_dm) {
    no_result(|| Object::<ibv_dm>::retire(handle).map(drop));
}

pub(crate) unsafe extern "C" fn alloc_mw(handle: *mut ibv_pd, mw_type: c_uint) -> *mut ibv_mw {
    pointer(|| {
        let kind = match mw_type {
            1 => MwKind::One,
            2 => MwKind::Two,
            _ => return Err(out_of_range("type", mw_type, "IBV_MW_TYPE_1 and IBV_MW_TYPE_2, 1 and 2")),
        };
        let mw = pd(handle)?.alloc_mw(kind)?;
        let (context, rkey) = (context_of(handle)?, mw.rkey().0);
        Ok(Object::publish_numbered(mw, |number| ibv_mw { context, pd: handle, rkey, handle: number, mw_type }))
    })
}

/// `man ibv_alloc_mw`. After it returns, no peer has access through the window.
pub(crate) unsafe extern "C" fn dealloc_mw(handle: *mut ibv_mw) -> c_int {
    let release = |mw: &Arc<Mw>| {
        mw.deallocate();
        Ok(())
    };
    status(|| Object::<ibv_mw>::destroy(handle, release))
}

/// `man ibv_bind_mw`: posts the binding of a type 1 window under its next rkey, and writes the rkey
/// to the structure.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    status(|| {
        let (qp, window) = (Object::<ibv_qp_ex>::live(qp)?, Object::<ibv_mw>::live(mw)?);
        let bind = required!(bind);
        // SAFETY: `live` found the window; the program serialises binds of one window.
        let current = unsafe { (&raw const (*mw).rkey).read() };
        let rkey = tagged_key(&window.inner, current.wrapping_add(1));
        let region = Object::<ibv_mr>::optional(bind.bind_info.mr)?;
        let op = bind_operation(&window.inner, MwKind::One, rkey, region, &bind.bind_info)?;
        let flags = SendFlags::from_bits_truncate(bind.send_flags);
        qp.inner.qp.send().push(&SendRequest { wr_id: bind.wr_id, op, flags, data: SendData::Sges(&[]), ud: None })?;
        // SAFETY: `live` found the window; the program serialises binds of one window.
        unsafe { (&raw mut (*mw).rkey).write(rkey.0) };
        Ok(())
    })
}

/// Returns the operation that binds a type 2 window, under the rkey that ends in the last byte of
/// `rkey`. Fails with EINVAL if the structure of the window or the region was overwritten; binds
/// are rare enough to check.
///
/// # Safety
/// `mw` and the region in `info` are NULL or live handles; `info` is NULL or a valid structure.
pub(crate) unsafe fn bind_type_2(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) -> Result<SendOp> {
    // SAFETY: the caller guarantees NULL or live handles, and NULL or a valid structure.
    unsafe {
        let (mw, info) =
            Object::<ibv_mw>::trusted(mw).zip(info.as_ref()).ok_or_else(|| null("bind_mw.mw or bind_info"))?;
        let region = Object::<ibv_mr>::trusted(info.mr);
        if !mw.is_intact() || region.is_some_and(|region| !region.is_intact()) {
            return Err(einval("bind_mw.mw or bind_info.mr was overwritten: its field context or handle has changed"));
        }
        bind_operation(&mw.inner, MwKind::Two, tagged_key(&mw.inner, rkey), region, info)
    }
}

/// Returns the key of `mw` with the last byte of `rkey`; the program cannot choose the other bytes.
fn tagged_key(mw: &Mw, rkey: u32) -> RKey {
    RKey(mw.rkey().0 & !0xff | rkey & 0xff)
}

/// Returns the operation that binds `mw` to a part of `region`. Fails with EINVAL for a window of
/// another kind, without a region and for unknown rights. Other errors complete as
/// `IBV_WC_MW_BIND_ERR`.
fn bind_operation(
    mw: &Mw,
    kind: MwKind,
    rkey: RKey,
    region: Option<&Object<ibv_mr>>,
    info: &ibv_mw_bind_info,
) -> Result<SendOp> {
    if mw.kind() != kind {
        let given = mw.kind();
        return Err(invalid(|| {
            format!(
                "the memory window is of type {given:?}; type One is bound with ibv_bind_mw, type Two with a work request"
            )
        }));
    }
    if region.is_none() && info.length > 0 {
        return Err(null("bind_info.mr"));
    }
    let lkey = region.map_or(LKey(0), |object| object.inner.lkey());
    let access = access(info.mw_access_flags)?;
    Ok(SendOp::BindWindow { rkey, lkey, access, addr: info.addr, length: info.length })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_ignores_unknown_hints_and_refuses_unknown_rights() {
        assert_eq!(access(1 | 1 << 25), Ok(Access::LOCAL_WRITE));
        assert_eq!(access(1 << 20), Ok(Access::RELAXED_ORDERING));
        assert_eq!(access(1 << 30), Err(EINVAL));
    }
}
