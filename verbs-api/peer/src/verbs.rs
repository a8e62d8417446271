//! libibverbs and librdmacm, opened at run time, and their objects as owning values.
//!
//! An object holds the objects that it uses, so that they are destroyed after it. `destroy` returns
//! the verb's error; dropping an object calls `destroy`. This module has all `unsafe` code of the
//! package. It relies on three facts: the pointer of an object comes from the library and is valid
//! until `destroy`, a session uses the pointers on one thread, and the structures are those of the
//! ABI (`roxe-abi`).

mod cm;
mod context;
mod memory;
mod queues;

use crate::protocol::Refusal;
pub(crate) use cm::{CmChannel, CmEvent, CmId};
pub(crate) use context::{Ah, Context, EventSource, Pd, Xrcd};
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use libc::sockaddr;
pub(crate) use memory::{Mr, Mw};
pub(crate) use queues::{Cq, Entry, Qp, QpInit, Segment, Srq};
use roxe_abi::*;
use std::io;
use std::time::{Duration, Instant};

/// Converts the return value of a verb: 0, an errno, a negative errno, or -1 and `errno`.
fn check(verb: &str, code: c_int) -> Result<(), Refusal> {
    let error = match code {
        0 => return Ok(()),
        -1 => io::Error::last_os_error(),
        code => io::Error::from_raw_os_error(code.saturating_abs()),
    };
    Err(Refusal::os(verb, &error))
}

/// Converts the returned pointer of a verb: an object, or NULL and `errno`.
fn check_pointer<T>(verb: &str, pointer: *mut T) -> Result<*mut T, Refusal> {
    if pointer.is_null() { Err(Refusal::os(verb, &io::Error::last_os_error())) } else { Ok(pointer) }
}

/// Returns the refusal for a verb that the library does not have.
fn missing(verb: &str) -> Refusal {
    Refusal { text: format!("the library does not have {verb}"), errno: libc::EOPNOTSUPP }
}

/// Waits until `fd` is readable or `until` has passed. Returns true if it is readable.
fn wait_readable(fd: c_int, until: Instant) -> bool {
    loop {
        // The timeout is rounded up, so that the loop does not spin in the last millisecond.
        let left = until.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
        let timeout = c_int::try_from(left.as_millis()).unwrap_or(c_int::MAX);
        let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: `entry` is a single `pollfd` and outlives the call.
        let ready = unsafe { libc::poll(&raw mut entry, 1, timeout) };
        if ready > 0 || timeout == 0 || Instant::now() >= until {
            return ready > 0;
        }
    }
}

fn make_nonblocking(fd: c_int) -> Result<(), Refusal> {
    // SAFETY: this call takes no pointers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: this call takes no pointers.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return check("fcntl", -1);
    }
    Ok(())
}

/// Implements `destroy` and `Drop` for types with a field `raw` that one verb destroys:
/// `Type by verb = |object| the function;`.
macro_rules! owned {
    ($($type:ident by $verb:ident = |$object:ident| $function:expr;)+) => {
        $(
            impl $type {
                pub(crate) fn destroy(&mut self) -> Result<(), Refusal> {
                    let raw = core::mem::replace(&mut self.raw, core::ptr::null_mut());
                    let $object = &*self;
                    let Some(destroy) = $function.filter(|_| !raw.is_null()) else { return Ok(()) };
                    // SAFETY: `raw` is a valid object of the library, and not used after this call;
                    // all events of an identifier have been acknowledged.
                    check(stringify!($verb), unsafe { destroy(raw) })
                }
            }

            impl Drop for $type {
                fn drop(&mut self) {
                    // A destructor cannot report an error.
                    let _ = self.destroy();
                }
            }
        )+
    };
}
use owned;

/// Defines a table of the functions of a library. The loader finds the library by name, as for
/// linked programs; `errno` is that of a missing library.
macro_rules! library {
    ($library:ident from $file:literal or $errno:ident;
     $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)+) => {
        /// The functions of the library, which stays loaded: providers do not support unloading.
        pub(crate) struct $library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
        }

        impl $library {
            pub(crate) fn open() -> Result<Self, Refusal> {
                // SAFETY: the name is a nul-terminated literal; any program may load the library.
                let handle = unsafe { libc::dlopen($file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
                if handle.is_null() {
                    return Err(Refusal { text: loader_error(), errno: libc::$errno });
                }
                Ok(Self {
                    $($name: {
                        let symbol = symbol(handle, concat!(stringify!($name), "\0"))?;
                        // SAFETY: the function of this name has this type in every release.
                        unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(symbol) }
                    },)+
                })
            }
        }
    };
}

library! {
    Library from c"libibverbs.so.1" or ENOENT;
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list: fn(*mut *mut ibv_device);
    ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device: fn(*mut ibv_context) -> c_int;
    ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    _ibv_query_gid_table: fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
    ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ibv_ack_async_event: fn(*mut ibv_async_event);
    ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_rereg_mr: fn(*mut ibv_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int;
    ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_resize_cq: fn(*mut ibv_cq, c_int) -> c_int;
    ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
    ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut ibv_cq, c_uint);
    ibv_create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_modify_srq: fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    ibv_destroy_srq: fn(*mut ibv_srq) -> c_int;
    ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
    ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_query_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    ibv_create_ah: fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    ibv_destroy_ah: fn(*mut ibv_ah) -> c_int;
    ibv_attach_mcast: fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int;
    ibv_detach_mcast: fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int;
}

library! {
    CmLibrary from c"librdmacm.so.1" or EOPNOTSUPP;
    rdma_create_event_channel: fn() -> *mut rdma_event_channel;
    rdma_destroy_event_channel: fn(*mut rdma_event_channel);
    rdma_get_cm_event: fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
    rdma_ack_cm_event: fn(*mut rdma_cm_event) -> c_int;
    rdma_create_id: fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_int) -> c_int;
    rdma_destroy_id: fn(*mut rdma_cm_id) -> c_int;
    rdma_bind_addr: fn(*mut rdma_cm_id, *const sockaddr) -> c_int;
    rdma_listen: fn(*mut rdma_cm_id, c_int) -> c_int;
    rdma_get_src_port: fn(*mut rdma_cm_id) -> u16;
    rdma_resolve_addr: fn(*mut rdma_cm_id, *const sockaddr, *const sockaddr, c_int) -> c_int;
    rdma_resolve_route: fn(*mut rdma_cm_id, c_int) -> c_int;
    rdma_init_qp_attr: fn(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
    rdma_connect: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    rdma_accept: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    rdma_establish: fn(*mut rdma_cm_id) -> c_int;
    rdma_reject: fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
    rdma_notify: fn(*mut rdma_cm_id, c_int) -> c_int;
    rdma_disconnect: fn(*mut rdma_cm_id) -> c_int;
}

fn symbol(library: *mut c_void, name: &'static str) -> Result<*mut c_void, Refusal> {
    // SAFETY: `library` stays loaded, and `name` is a nul-terminated literal.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr().cast::<c_char>()) };
    if symbol.is_null() {
        return Err(Refusal { text: loader_error(), errno: libc::ENOSYS });
    }
    Ok(symbol)
}

fn loader_error() -> String {
    // SAFETY: the function takes no arguments.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the dynamic loader gave no reason".to_owned();
    }
    // SAFETY: `text` is nul-terminated, and valid until this thread calls the loader again.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
