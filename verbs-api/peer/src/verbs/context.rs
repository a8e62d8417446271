//! An open device with its asynchronous events; protection domains, XRC domains, address handles.

use super::{Library, check, check_pointer, make_nonblocking, missing, owned, wait_readable};
use crate::protocol::Refusal;
use core::ffi::{CStr, c_char, c_int};
use core::mem::offset_of;
use core::ptr;
use roxe_abi::*;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

/// Maximum number of GIDs that are read.
const MAX_GIDS: usize = 256;

/// An open device; closed after its last object is destroyed.
pub(crate) struct Context {
    pub(super) raw: *mut ibv_context,
    pub(super) library: Rc<Library>,
    pub(crate) name: String,
    /// Folder of the device in sysfs.
    pub(crate) folder: PathBuf,
}

/// The source of an asynchronous event: kind and address of an object (for comparison only), or a
/// port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventSource {
    Object(&'static str, usize),
    Port(u8),
    Device,
}

/// A copy of an asynchronous event, which is acknowledged already.
pub(crate) struct Event {
    pub(crate) event_type: u32,
    pub(crate) source: EventSource,
}

impl Context {
    /// Opens the device with this name, or the first device.
    pub(crate) fn open(wanted: Option<&str>) -> Result<Rc<Self>, Refusal> {
        let library = Rc::new(Library::open()?);
        let mut count: c_int = 0;
        // SAFETY: `count` is valid for writing.
        let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
        let list = check_pointer("ibv_get_device_list", list)?;
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: `list` has `count` devices and is valid until `ibv_free_device_list` below.
        let devices = unsafe { core::slice::from_raw_parts(list.cast_const(), count) };
        // SAFETY: `device` is from `list`, which is valid until `ibv_free_device_list` below.
        let name = |device: *mut ibv_device| unsafe { text(&(*device).name) };
        let found = devices.iter().copied().find(|device| wanted.is_none_or(|wanted| name(*device) == wanted));
        let context = found.ok_or_else(|| no_device(wanted)).and_then(|device| {
            // SAFETY: `device` is from `list`, which is valid until `ibv_free_device_list` below.
            let (folder, raw) = unsafe { (text(&(*device).ibdev_path), (library.ibv_open_device)(device)) };
            let raw = check_pointer("ibv_open_device", raw)?;
            Ok(Self { raw, library: Rc::clone(&library), name: name(device), folder: folder.into() })
        });
        // SAFETY: `list` is from `ibv_get_device_list` and not used after this call; an open device
        // does not need it.
        unsafe { (library.ibv_free_device_list)(list) };
        let context = context?;
        // SAFETY: `context.raw` is valid until `context` is dropped.
        make_nonblocking(unsafe { (*context.raw).async_fd })?;
        Ok(Rc::new(context))
    }

    /// Returns the functions that inline functions of the headers call.
    pub(super) fn ops(&self) -> &ibv_context_ops {
        // SAFETY: `self.raw` is valid until `self` is dropped, and its functions do not change.
        unsafe { &(*self.raw).ops }
    }

    /// Returns the functions that are newer than [`Self::ops`], if the library has all of
    /// `verbs_context`.
    pub(super) fn extended(&self) -> Option<&verbs_context> {
        // SAFETY: `self.raw` is valid until `self` is dropped.
        if unsafe { (*self.raw).abi_compat } != ABI_EXTENDED {
            return None;
        }
        // SAFETY: with ABI_EXTENDED, the context is the tail of a `verbs_context`, which is valid
        // until `self` is dropped. That structure grows at its front: its field `sz` is always
        // present, and is the length of the structure.
        let (start, len) = unsafe {
            let start = self.raw.byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
            (start, (&raw const (*start).sz).read())
        };
        if len < size_of::<verbs_context>() {
            return None;
        }
        // SAFETY: the structure has `sz` bytes, enough for all its fields; it is valid until `self`
        // is dropped, and its functions do not change.
        Some(unsafe { &*start })
    }

    /// Returns true if the kernel carries out the verbs: their descriptor is a character device.
    pub(crate) fn is_of_kernel(&self) -> bool {
        // SAFETY: `self.raw` is valid until `self` is dropped.
        let descriptor = unsafe { (*self.raw).cmd_fd };
        let file = fs::metadata(format!("/proc/self/fd/{descriptor}"));
        file.is_ok_and(|file| file.file_type().is_char_device())
    }

    pub(crate) fn device_attr(&self) -> Result<ibv_device_attr, Refusal> {
        let mut attr = ibv_device_attr::ZERO;
        // SAFETY: `self.raw` is valid until `self` is dropped, and `attr` is valid for writing.
        check("ibv_query_device", unsafe { (self.library.ibv_query_device)(self.raw, &raw mut attr) })?;
        Ok(attr)
    }

    /// Returns the attributes of a port, without capabilities newer than the exported function.
    pub(crate) fn port_attr(&self, port: u8) -> Result<ibv_port_attr, Refusal> {
        let mut attr = ibv_port_attr::ZERO;
        // SAFETY: `self.raw` is valid until `self` is dropped; the function writes an older and
        // shorter form of `attr`.
        check("ibv_query_port", unsafe { (self.library.ibv_query_port)(self.raw, port, &raw mut attr) })?;
        Ok(attr)
    }

    pub(crate) fn gids(&self) -> Result<Vec<ibv_gid_entry>, Refusal> {
        let mut entries = vec![ibv_gid_entry::ZERO; MAX_GIDS];
        // SAFETY: `self.raw` is valid until `self` is dropped; `entries` has room for MAX_GIDS
        // entries of this size.
        let count = unsafe {
            let size = size_of::<ibv_gid_entry>();
            (self.library._ibv_query_gid_table)(self.raw, entries.as_mut_ptr(), MAX_GIDS, 0, size)
        };
        let count = usize::try_from(count)
            .or_else(|_| check("ibv_query_gid_table", c_int::try_from(count).unwrap_or(-libc::EIO)).map(|()| 0))?;
        entries.truncate(count);
        Ok(entries)
    }

    pub(crate) fn event(&self, until: Instant) -> Result<Option<Event>, Refusal> {
        // SAFETY: `self.raw` is valid until `self` is dropped.
        if !wait_readable(unsafe { (*self.raw).async_fd }, until) {
            return Ok(None);
        }
        let mut event = ibv_async_event { element: async_element { cq: ptr::null_mut() }, event_type: 0 };
        // SAFETY: `self.raw` is valid until `self` is dropped, and `event` is valid for writing.
        check("ibv_get_async_event", unsafe { (self.library.ibv_get_async_event)(self.raw, &raw mut event) })?;
        let event_type = event.event_type.unsigned_abs();
        // SAFETY: the members are a number and pointers at the same offset, and the union was
        // initialised with a pointer.
        let (address, port) = unsafe { (event.element.cq.addr(), event.element.port_num) };
        let source = match event_type {
            0 => EventSource::Object("cq", address),
            1..=7 | 16 => EventSource::Object("qp", address),
            14 | 15 => EventSource::Object("srq", address),
            9..=13 | 17 | 18 => EventSource::Port(u8::try_from(port).unwrap_or(0)),
            _ => EventSource::Device,
        };
        // SAFETY: `event` is the received event, and this acknowledges it once.
        unsafe { (self.library.ibv_ack_async_event)(&raw mut event) };
        Ok(Some(Event { event_type, source }))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `open` opened `self.raw`, and no object uses it: each holds an `Rc` of `self`.
        unsafe { (self.library.ibv_close_device)(self.raw) };
    }
}

fn no_device(wanted: Option<&str>) -> Refusal {
    let text = wanted.map_or_else(|| "there is no device".to_owned(), |name| format!("there is no device {name}"));
    Refusal { text, errno: libc::ENODEV }
}

/// Returns the text in `array`, up to a nul byte.
fn text(array: &[c_char]) -> String {
    // SAFETY: `array` has this length and is borrowed; `c_char` and `u8` have the same layout.
    let bytes = unsafe { core::slice::from_raw_parts(array.as_ptr().cast::<u8>(), array.len()) };
    CStr::from_bytes_until_nul(bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

pub(crate) struct Pd {
    pub(crate) raw: *mut ibv_pd,
    pub(super) context: Rc<Context>,
}

impl Pd {
    pub(crate) fn alloc(context: &Rc<Context>) -> Result<Self, Refusal> {
        // SAFETY: `context.raw` is valid while `context` is held.
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
        // SAFETY: `context.raw` is valid while `context` is held; `init` is a structure of the ABI
        // and outlives the call.
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
        // SAFETY: `pd.raw` is valid while `pd` is held; `attr` is a structure of the ABI and
        // outlives the call.
        let raw = unsafe { (pd.context.library.ibv_create_ah)(pd.raw, &raw mut attr) };
        Ok(Self { raw: check_pointer("ibv_create_ah", raw)?, pd: Rc::clone(pd) })
    }
}

owned! {
    Pd by ibv_dealloc_pd = |pd| Some(pd.context.library.ibv_dealloc_pd);
    Xrcd by ibv_close_xrcd = |xrcd| xrcd.context.extended().and_then(|more| more.close_xrcd);
    Ah by ibv_destroy_ah = |ah| Some(ah.pd.context.library.ibv_destroy_ah);
}
