//! libibverbs and librdmacm, opened while running, and their objects as values that own them.
//!
//! An object holds those that it was made from, so that none is destroyed before what uses it; each
//! is destroyed when it is dropped, or by `end`, which says what the verb answered. This is the
//! only place of the package with `unsafe`. The reasons there rest on three facts: the pointers
//! come from the library and are kept until they are handed back to it, a session uses them on one
//! thread, and the structures are those of the ABI (`roxe-abi`).

mod cm;
mod context;
mod library;
mod memory;
mod objects;
mod queues;
mod requests;

pub(crate) use cm::{CmChannel, CmEvent, CmId};
pub(crate) use context::{Context, EventSource};
pub(crate) use memory::{Mr, Mw};
pub(crate) use objects::{Ah, Pd, Xrcd};
pub(crate) use queues::{Cq, Qp, QpInit, Srq};
pub(crate) use requests::Segment;

use crate::protocol::Refusal;
use core::ffi::c_int;
use std::io;
use std::time::{Duration, Instant};

/// What a verb answered by its return value: 0, an errno, a negative errno, or -1 and `errno`.
fn check(verb: &str, code: c_int) -> Result<(), Refusal> {
    let error = match code {
        0 => return Ok(()),
        -1 => io::Error::last_os_error(),
        code => io::Error::from_raw_os_error(code.saturating_abs()),
    };
    Err(Refusal::os(verb, &error))
}

/// What a verb answered by a pointer: NULL and `errno`, or an object.
fn check_pointer<T>(verb: &str, pointer: *mut T) -> Result<*mut T, Refusal> {
    if pointer.is_null() { Err(Refusal::os(verb, &io::Error::last_os_error())) } else { Ok(pointer) }
}

/// The library has no function for this verb.
fn missing(verb: &str) -> Refusal {
    Refusal { text: format!("{verb}: the library has no such function"), errno: libc::EOPNOTSUPP }
}

/// Waits until there is something to read from `fd`, and tells whether there is; `until` has passed
/// otherwise.
fn wait_readable(fd: c_int, until: Instant) -> bool {
    loop {
        // Rounded up: a wait of less than a millisecond is none otherwise, and the caller would
        // ask again and again until the time has come.
        let left = until.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
        let timeout = c_int::try_from(left.as_millis()).unwrap_or(c_int::MAX);
        let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives during the call.
        let ready = unsafe { libc::poll(&raw mut entry, 1, timeout) };
        if ready > 0 || timeout == 0 || Instant::now() >= until {
            return ready > 0;
        }
    }
}

/// Makes reads from `fd` return at once.
fn make_nonblocking(fd: c_int) -> Result<(), Refusal> {
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: no pointers.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return check("fcntl", -1);
    }
    Ok(())
}

/// Objects that one verb destroys, if the library has it, and `end` tells what it answered:
/// `Type by verb = |object| the function;` for a structure with the field `raw`.
macro_rules! owned {
    ($($type:ident by $verb:ident = |$object:ident| $function:expr;)+) => {
        $(
            impl $type {
                pub(crate) fn end(&mut self) -> Result<(), Refusal> {
                    let raw = core::mem::replace(&mut self.raw, core::ptr::null_mut());
                    let $object = &*self;
                    let Some(destroy) = $function.filter(|_| !raw.is_null()) else { return Ok(()) };
                    // SAFETY: the object is alive until this call, and nobody has its pointer now;
                    // all events of an identifier have been acknowledged.
                    check(stringify!($verb), unsafe { destroy(raw) })
                }
            }

            impl Drop for $type {
                fn drop(&mut self) {
                    // Nobody is there to be told.
                    let _ = self.end();
                }
            }
        )+
    };
}
use owned;
