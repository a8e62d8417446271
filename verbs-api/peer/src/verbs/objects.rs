//! Protection domains and address handles.

use super::{Context, check, check_pointer, owned};
use crate::protocol::Refusal;
use roxe_abi::*;
use std::rc::Rc;

/// A protection domain.
pub(crate) struct Pd {
    pub(super) raw: *mut ibv_pd,
    context: Rc<Context>,
}

impl Pd {
    pub(crate) fn alloc(context: &Rc<Context>) -> Result<Self, Refusal> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library().ibv_alloc_pd)(context.raw()) };
        Ok(Self { raw: check_pointer("ibv_alloc_pd", raw)?, context: Rc::clone(context) })
    }

    pub(super) const fn context(&self) -> &Rc<Context> {
        &self.context
    }
}

/// An address handle.
pub(crate) struct Ah {
    pub(super) raw: *mut ibv_ah,
    pd: Rc<Pd>,
}

impl Ah {
    pub(crate) fn create(pd: &Rc<Pd>, mut attr: ibv_ah_attr) -> Result<Self, Refusal> {
        // SAFETY: the domain is alive, the structure is the one of the ABI.
        let raw = unsafe { (pd.context().library().ibv_create_ah)(pd.raw, &raw mut attr) };
        Ok(Self { raw: check_pointer("ibv_create_ah", raw)?, pd: Rc::clone(pd) })
    }

    fn context(&self) -> &Context {
        self.pd.context()
    }
}

owned! {
    Pd by ibv_dealloc_pd;
    Ah by ibv_destroy_ah;
}
