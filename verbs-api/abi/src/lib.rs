//! The structures of `infiniband/verbs.h` and `rdma/rdma_cma.h` that cross the boundary, and those
//! of the kernel that some functions convert, field for field, and nothing else.
//!
//! Data-path verbs are inline functions compiled into the application: they read these structures
//! in our memory and jump through the function pointers in them. `verbs-api/capi` fills them for
//! programs, `verbs-api/peer` reads those of the library of another card. Enumerations are plain
//! integers here, because C may store any value in them. Byte order is host order unless a field
//! says otherwise.
//!
//! Each structure stands with its size, its alignment and the offset of every field, and the
//! compiler checks them. These numbers were not written by hand: they were taken from the debug
//! information of Debian 12's libibverbs (rdma-core 44, x86-64) and agree with a C program that
//! prints `sizeof` and `offsetof`. They are the same on every 64-bit Linux, and later releases of
//! rdma-core only append.
//!
//! Touches nothing.

#![allow(non_camel_case_types)]
// A field says what `man 3` of its verb says; only what differs from that is said here.
#![allow(missing_docs)]

/// Structures of C: `name(size, alignment) { offset field: type, ... }`. All bits zero are a value
/// of each, because the types of fields are numbers, pointers, optional functions, and arrays,
/// unions and structures of these.
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
                /// The structure with nothing in it.
                pub const ZERO: Self =
                    // SAFETY: what the types of the fields are: see the macro.
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

/// A slot for a function of C.
macro_rules! c_fn {
    (fn($($argument:ty),*) $(-> $result:ty)?) => { Option<unsafe extern "C" fn($($argument),*) $(-> $result)?> };
}

/// A structure that takes from another the fields that have the same names there, some of them
/// converted, and the others as given: `copy_fields!(Type from source { field, ... } via convert {
/// field, ... } with { other: value, ... })`.
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

/// A structure whose slots hold the functions of the same names, module by module, and whose other
/// fields are as given: `with_functions!(Type { module: function ...; ... } with { field: value,
/// ... })`.
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

/// Space of a `pthread_mutex_t`, which only the library itself would use.
pub type Mutex = [u64; 5];
/// Space of a `pthread_cond_t`, which only the library itself would use.
pub type Cond = [u64; 6];
/// An unused slot.
pub type Unused = Option<unsafe extern "C" fn()>;

/// Marks an `ibv_context` as the tail of a [`verbs_context`] (`abi_compat`).
pub const ABI_EXTENDED: usize = usize::MAX;

/// The builder that `ibv_wr_*` is given.
type Qpx = *mut ibv_qp_ex;
/// The queue that `ibv_start_poll` and its kin are given.
type Cqx = *mut ibv_cq_ex;
