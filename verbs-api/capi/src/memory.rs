//! Memory regions, and the fork calls.

use crate::abi::{ibv_mr, ibv_pd};
use crate::errno::{EINVAL, Result, invalid, pointer, status, zero};
use crate::object::Object;
use crate::objects::{context_of, pd};
use crate::{garbage, objects};
use core::ffi::{c_int, c_uint, c_void};
use roxe_provider::{Access, DmaBuf, Mr, MrChange};
use std::sync::Arc;

/// `IBV_ACCESS_OPTIONAL_RANGE`: hints in these bits that the device does not know are ignored.
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;
/// `IBV_REREG_MR_CHANGE_TRANSLATION`, `_PD`, `_ACCESS`.
const REREG_TRANSLATION: c_int = 1;
const REREG_PD: c_int = 2;
const REREG_ACCESS: c_int = 4;
/// `IBV_FORK_UNNEEDED`: memory that the card reads is the process's own, so fork needs no
/// preparation.
const FORK_UNNEEDED: c_int = 2;

/// The rights that `bits` name; hints that the device does not know are left out, other unknown
/// bits refused.
pub(crate) fn access(bits: u32) -> Result<Access> {
    let known = bits & (Access::all().bits() | !OPTIONAL_ACCESS);
    Access::from_bits(known).ok_or_else(|| garbage::access(EINVAL, "the registration of memory", ("access", bits)))
}

fn register(handle: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, bits: u32) -> Result<*mut ibv_mr> {
    let (pd, access) = (pd(handle)?, access(bits)?);
    // SAFETY: the program's promise when it registers memory: that it is its own for as long.
    let mr = unsafe { pd.reg_mr(addr.addr() as u64, length as u64, iova, access) }?;
    publish(handle, addr, length, mr)
}

/// Gives the program a region of the domain `handle`.
pub(crate) fn publish(handle: *mut ibv_pd, addr: *mut c_void, length: usize, mr: Arc<Mr>) -> Result<*mut ibv_mr> {
    let (context, lkey, rkey) = (context_of(handle)?, mr.lkey().0, mr.rkey().0);
    Ok(Object::publish_numbered(mr, |number| ibv_mr { context, pd: handle, addr, length, handle: number, lkey, rkey }))
}

/// `man ibv_reg_mr`.
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

/// What the macros for the two above call when the rights are no constant or hold hints.
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    pointer(|| register(pd, addr, length, iova, access))
}

/// `man ibv_reg_mr`. The structure shows `offset` as address.
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
        let addr = usize::try_from(offset).map_err(|_| invalid(|| format!("offset is {offset:#x}")))?;
        publish(handle, core::ptr::without_provenance_mut(addr), length, mr)
    })
}

/// `man ibv_alloc_null_mr`. The structure shows no key for peers.
pub(crate) unsafe extern "C" fn alloc_null_mr(handle: *mut ibv_pd) -> *mut ibv_mr {
    pointer(|| {
        let mr = publish(handle, core::ptr::null_mut(), usize::MAX, pd(handle)?.alloc_null_mr()?)?;
        // SAFETY: made on the line above, and nobody else has it yet.
        unsafe { (&raw mut (*mr).rkey).write(0) };
        Ok(mr)
    })
}

/// The parts of a region that the `IBV_REREG_MR_CHANGE_*` bits in `flags` name.
fn change(flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize, bits: u32) -> Result<MrChange> {
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
        return Err(invalid(|| format!("IBV_REREG_MR_CHANGE_TRANSLATION with addr {addr:p} and length {length}")));
    }
    Ok(MrChange {
        pd: given(REREG_PD).then(|| objects::pd(pd).cloned()).transpose()?,
        range: given(REREG_TRANSLATION).then_some((addr.addr() as u64, length as u64)),
        access: given(REREG_ACCESS).then(|| access(bits)).transpose()?,
    })
}

/// `man ibv_rereg_mr`. Each failure is -1, `IBV_REREG_MR_ERR_INPUT`, "the old region is still
/// valid", because it is; errno says why.
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
        let change = change(flags, pd, addr, length, access.cast_unsigned())?;
        // SAFETY: the program's promise when it registers memory: that it is its own for as long.
        unsafe { object.inner.reregister(change) }?;
        let exposed = object.exposed();
        // SAFETY: the structure is alive, and its fields belong to the call that changes the
        // region.
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

/// `man ibv_reg_mr`. When it returns, no peer and no engine touches the memory any more.
pub(crate) unsafe extern "C" fn ibv_dereg_mr(handle: *mut ibv_mr) -> c_int {
    status(|| Object::<ibv_mr>::destroy(handle, |mr| mr.deregister()))
}

/// `man ibv_fork_init`: there is nothing to prepare, so it cannot fail.
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    roxe_check::note_fork_support();
    0
}

/// `man ibv_is_fork_initialized`.
pub(crate) extern "C" fn ibv_is_fork_initialized() -> c_int {
    roxe_check::note_fork_support();
    FORK_UNNEEDED
}

/// Keeps a range out of children; not needed here.
pub(crate) extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Undoes [`ibv_dontfork_range`].
pub(crate) extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_hints_are_ignored_and_unknown_rights_refused() {
        assert_eq!(access(1 | 1 << 25), Ok(Access::LOCAL_WRITE));
        assert_eq!(access(1 << 20), Ok(Access::RELAXED_ORDERING));
        assert_eq!(access(1 << 30), Err(EINVAL));
    }
}
