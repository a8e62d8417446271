//! The C structures of `infiniband/verbs.h` and `rdma/rdma_cma.h`, and those of the kernel that
//! some functions of librdmacm convert, field by field.
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

/// Declares C structures: `name(size, alignment) { offset field: type, ... }`. All zero bits are a
/// valid value, because fields are numbers, pointers, optional functions, or arrays, unions and
/// structures of these.
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

macro_rules! c_fn {
    (fn($($argument:ty),*) $(-> $result:ty)?) => { Option<unsafe extern "C" fn($($argument),*) $(-> $result)?> };
}

/// Builds a structure from fields of the same names in another one, some of them converted, and
/// from further values: `copy_fields!(Type from source { field, ... } via convert { field, ... }
/// with { other: value, ... })`.
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

/// Builds a structure whose slots hold the functions of the same names, listed by module, and
/// further values: `with_functions!(Type { module: function ...; ... } with { field: value, ...
/// })`.
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

/// Space of a `pthread_mutex_t`, which only the library uses.
pub type Mutex = [u64; 5];
/// Space of a `pthread_cond_t`, which only the library uses.
pub type Cond = [u64; 6];
/// An unused slot.
pub type Unused = Option<unsafe extern "C" fn()>;

/// Marks an `ibv_context` as the tail of a [`verbs_context`] (`abi_compat`).
pub const ABI_EXTENDED: usize = usize::MAX;

/// Argument of `ibv_wr_*`.
type Qpx = *mut ibv_qp_ex;
/// Argument of `ibv_start_poll` and the like.
type Cqx = *mut ibv_cq_ex;
