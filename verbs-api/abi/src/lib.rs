//! The C structures of `infiniband/verbs.h` and `rdma/rdma_cma.h`, and the kernel's structures that
//! functions such as `ibv_copy_qp_attr_from_kern` convert.
//!
//! Data-path verbs are inline functions in the application: they read these structures in the
//! library's memory and call the function pointers in them. `verbs-api/capi` fills the structures
//! for programs, `verbs-api/peer` reads those of another card's library. Enumerations are plain
//! integers, because C may store any value in them. Numbers are in host byte order unless a field
//! says otherwise.
//!
//! Each structure is declared with its size, its alignment and the offset of every field, which the
//! compiler checks. The numbers are from the debug information of Debian 12's libibverbs (rdma-core
//! 44, x86-64), and agree with a C program that prints `sizeof` and `offsetof`. They are the same
//! on every 64-bit Linux, and later releases of rdma-core only append fields.

#![allow(non_camel_case_types)]
// `man 3` of the verbs documents the fields; only differences are documented here.
#![allow(missing_docs)]

/// Declares C structures: `name(size, alignment) { offset field: type, ... }`. A structure with all
/// bits zero is valid, because fields are numbers, pointers, optional functions, or arrays, unions
/// and structures of these.
macro_rules! c_structs {
    ($($(#[$attribute:meta])* $name:ident($size:literal, $align:literal) {
        $($(#[$doc:meta])* $offset:literal $field:ident: $type:ty),+ $(,)?
    })+) => {
        $(
            $(#[$attribute])*
            #[derive(Clone, Copy)]
            #[repr(C)]
            pub struct $name {
                $($(#[$doc])* pub $field: $type,)+
            }

            const _: () = {
                assert!(size_of::<$name>() == $size && align_of::<$name>() == $align, stringify!($name));
                $(assert!(offset_of!($name, $field) == $offset, concat!(stringify!($name), ".", stringify!($field)));)+
            };

            impl $name {
                /// The structure with all bits zero.
                pub const ZERO: Self =
                    // SAFETY: all zero bits are valid for the types of the fields; see the macro.
                    unsafe { MaybeUninit::zeroed().assume_init() };
            }

            impl Default for $name {
                fn default() -> Self {
                    Self::ZERO
                }
            }
        )+
    };
}

/// Expands to the type of an optional C function pointer.
macro_rules! c_fn {
    (fn($($argument:ty),*) $(-> $result:ty)?) => { Option<unsafe extern "C" fn($($argument),*) $(-> $result)?> };
}

/// Builds a structure from another one: `copy_fields!(Type from source { field, ... } via convert {
/// field, ... } with { other: value, ... })`. The listed fields have the same names in both; those
/// after `via` are converted. The fields after `with` get the given values.
#[macro_export]
macro_rules! copy_fields {
    ($type:ident from $source:ident { $($same:ident),+ $(,)? }
        $(via $convert:ident { $($converted:ident),+ $(,)? })? $(with { $($given:tt)* })?) => {
        $type {
            $($same: $source.$same,)+
            $($($converted: $convert($source.$converted),)+)?
            $($($given)*)?
        }
    };
}

/// Builds a structure of function pointers: `with_functions!(Type { module: function ...; ... }
/// with { field: value, ... })`. Each listed slot holds the function of its name in `module`. The
/// fields after `with` get the given values.
#[macro_export]
macro_rules! with_functions {
    ($type:ident { $($module:tt: $($slot:ident)+;)+ } with { $($given:tt)* }) => {
        $type { $($($slot: Some($module::$slot),)+)+ $($given)* }
    };
}

mod cm;
mod context;
mod device;
mod flow;
mod kernel;
mod memory;
mod queue;
mod request;

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::{MaybeUninit, offset_of};

pub use cm::*;
pub use context::*;
pub use device::*;
pub use flow::*;
pub use kernel::*;
pub use memory::*;
pub use queue::*;
pub use request::*;

/// Space of a `pthread_mutex_t`, which only the verbs library uses.
pub type Mutex = [u64; 5];
/// Space of a `pthread_cond_t`, which only the verbs library uses.
pub type Cond = [u64; 6];
/// Slot of a function that roxe neither fills nor calls.
pub type Unused = Option<unsafe extern "C" fn()>;

/// Value of `ibv_context.abi_compat` that marks the context as the tail of a [`verbs_context`].
pub const ABI_EXTENDED: usize = usize::MAX;

/// First argument of the functions behind `ibv_wr_*`.
type Qpx = *mut ibv_qp_ex;
/// First argument of the functions behind `ibv_start_poll` and the other calls on an extended CQ.
type Cqx = *mut ibv_cq_ex;
