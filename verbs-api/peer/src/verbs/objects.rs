//! Protection domains, XRC domains and address handles.

use super::{Context, check, check_pointer, missing, owned};
use crate::protocol::Refusal;
use roxe_abi::*;
use std::rc::Rc;

pub(crate) struct Pd {
    pub(crate) raw: *mut ibv_pd,
    pub(super) context: Rc<Context>,
}

impl Pd {
    pub(crate) fn alloc(context: &Rc<Context>) -> Result<Self, Refusal> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library.ibv_alloc_pd)(context.raw) };
        Ok(Self { raw: check_pointer("ibv_alloc_pd", raw)?, context: Rc::clone(context) })
    }
}

pub(crate) struct Xrcd {
    pub(crate) raw: *mut ibv_xrcd,
    context: Rc<Context>,
}

impl Xrcd {
    /// Creates a domain that other processes cannot open.
    pub(crate) fn open(context: &Rc<Context>) -> Result<Self, Refusal> {
        let open = context.extended().and_then(|more| more.open_xrcd).ok_or_else(|| missing("ibv_open_xrcd"))?;
        // `IBV_XRCD_INIT_ATTR_FD` and `IBV_XRCD_INIT_ATTR_OFLAGS`.
        let mut init = ibv_xrcd_init_attr { comp_mask: 3, fd: -1, oflags: libc::O_CREAT };
        // SAFETY: the context is open, the structure is the one of the ABI.
        let raw = unsafe { open(context.raw, &raw mut init) };
        Ok(Self { raw: check_pointer("ibv_open_xrcd", raw)?, context: Rc::clone(context) })
    }
}

pub(crate) struct Ah {
    pub(crate) raw: *mut ibv_ah,
    pd: Rc<Pd>,
}

impl Ah {
    pub(crate) fn create(pd: &Rc<Pd>, mut attr: ibv_ah_attr) -> Result<Self, Refusal> {
        // SAFETY: the domain is alive, the structure is the one of the ABI.
        let raw = unsafe { (pd.context.library.ibv_create_ah)(pd.raw, &raw mut attr) };
        Ok(Self { raw: check_pointer("ibv_create_ah", raw)?, pd: Rc::clone(pd) })
    }
}

owned! {
    Pd by ibv_dealloc_pd = |pd| Some(pd.context.library.ibv_dealloc_pd);
    Xrcd by ibv_close_xrcd = |xrcd| xrcd.context.extended().and_then(|more| more.close_xrcd);
    Ah by ibv_destroy_ah = |ah| Some(ah.pd.context.library.ibv_destroy_ah);
}
