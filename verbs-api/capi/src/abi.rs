//! The structures of `infiniband/verbs.h` and `rdma/rdma_cma.h` that cross the boundary, field for field, and nothing else.
//!
//! Data-path verbs are inline functions compiled into the application: they read these structures in our memory and jump
//! through the function pointers in them. Sizes and offsets are asserted in `abi_layout.rs`. Enumerations are plain
//! integers here, because C may store any value in them. Byte order is host order unless a field says otherwise.
//!
//! Touches nothing.

#![allow(non_camel_case_types)]

mod cm;
mod context;
mod device;
mod flow;
mod memory;
mod queue;
mod request;

use core::ffi::{c_char, c_int, c_uint, c_void};

pub(crate) use cm::*;
pub(crate) use context::*;
pub(crate) use device::*;
pub(crate) use flow::*;
pub(crate) use memory::*;
pub(crate) use queue::*;
pub(crate) use request::*;

/// Space of a `pthread_mutex_t`, which only the library itself would use.
pub(crate) type Mutex = [u64; 5];
/// Space of a `pthread_cond_t`, which only the library itself would use.
pub(crate) type Cond = [u64; 6];
/// A slot nobody calls.
pub(crate) type Unused = Option<unsafe extern "C" fn()>;

/// Marks an `ibv_context` as the tail of a [`verbs_context`] (`abi_compat`).
pub(crate) const ABI_EXTENDED: usize = usize::MAX;

/// The builder that `ibv_wr_*` is given.
type Qpx = *mut ibv_qp_ex;
/// The queue that `ibv_start_poll` and its kin are given.
type Cqx = *mut ibv_cq_ex;
