//! The list of devices, and queries that need no open device.
//!
//! A device stays valid until the process ends, because programs use its pointer after they have
//! freed the list.

use crate::abi::ibv_device;
use crate::errno::{EINVAL, Errno, Result, minus_one, pointer};
use crate::lock::DeviceEntries;
use core::ffi::{CStr, c_char, c_int};
use roxe_provider::Device;
use roxe_provider::lock::Mutex;
use roxe_provider::standard_error;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Once};

/// `IBV_NODE_CA`.
const NODE_CA: c_int = 1;
/// `IBV_TRANSPORT_IB`; RoCE is this transport on another link layer.
const TRANSPORT_IB: c_int = 0;

/// A device. Programs see the first field.
///
/// Provider libraries (libmlx5, libefa) read a pointer of their own after the public structure of
/// any device; `tail` makes them read NULL.
#[repr(C)]
struct DeviceEntry {
    public: ibv_device,
    tail: [u64; 8],
    device: Arc<Device>,
}

static ENTRIES: Mutex<DeviceEntries, Vec<&'static DeviceEntry>> = Mutex::new(Vec::new());

impl DeviceEntry {
    fn new(device: Arc<Device>) -> Self {
        let public = ibv_device {
            _ops: [0; 2],
            node_type: NODE_CA,
            transport_type: TRANSPORT_IB,
            name: text(device.name()),
            dev_name: text(device.name()),
            dev_path: text(&format!("/sys/class/infiniband_verbs/{}", device.name())),
            ibdev_path: text(&format!("/sys/class/infiniband/{}", device.name())),
        };
        Self { public, tail: [0; 8], device }
    }
}

/// Returns `text` as a zero-terminated array, truncated to fit.
pub(crate) fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(text.bytes()).take(N.saturating_sub(1)) {
        *to = c_char::from_ne_bytes([from]);
    }
    out
}

fn entry(device: *mut ibv_device) -> Result<&'static DeviceEntry> {
    ENTRIES.lock().iter().find(|entry| core::ptr::eq(&raw const entry.public, device)).copied().ok_or(EINVAL)
}

pub(crate) fn device(device: *mut ibv_device) -> Result<Arc<Device>> {
    entry(device).map(|entry| Arc::clone(&entry.device))
}

/// Returns the devices as programs see them. Searches for devices at each call until it has found
/// one.
pub(crate) fn handles() -> Result<Vec<*mut ibv_device>> {
    let mut entries = ENTRIES.lock();
    if entries.is_empty() {
        let devices =
            roxe_provider::devices().inspect_err(|error| standard_error::write(&format!("roxe: {error}\n")))?;
        entries.extend(devices.into_iter().map(|device| &*Box::leak(Box::new(DeviceEntry::new(device)))));
    }
    // At every call, because UCX may be loaded after the first one.
    if let Some(first) = entries.first() {
        report_ucx(first.device.name());
    }
    Ok(entries.iter().map(|entry| (&raw const entry.public).cast_mut()).collect())
}

/// Reports once, on standard error, that UCX does not use the devices. UCX uses a device only if
/// its character device exists, which `roxe run` shows to the programs that it starts.
fn report_ucx(name: &str) {
    static REPORT: Once = Once::new();
    let node = format!("/dev/infiniband/{name}");
    let has_ucx = || fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains("/libuct_ib.so"));
    if !REPORT.is_completed() && !Path::new(&node).exists() && has_ucx() {
        let text = format!(
            "roxe: UCX does not use {name} in this process: only roxe run shows it {node}; start the program, or its \
             mpirun, by roxe run\n"
        );
        REPORT.call_once(|| standard_error::write(&text));
    }
}

/// Returns a NULL-terminated array that `free` releases.
pub(crate) fn c_array<T>(handles: &[*mut T]) -> Result<*mut *mut T> {
    // SAFETY: `calloc` accepts any numbers.
    let array = unsafe { libc::calloc(handles.len() + 1, size_of::<*mut T>()) }.cast::<*mut T>();
    if array.is_null() {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: the new array has one element more than `handles`, and no other code has it.
    unsafe { array.copy_from_nonoverlapping(handles.as_ptr(), handles.len()) };
    Ok(array)
}

pub(crate) unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    pointer(|| {
        let handles = handles()?;
        let array = c_array(&handles)?;
        if !num_devices.is_null() {
            // SAFETY: not NULL; the program passes a variable that is valid during the call.
            unsafe { num_devices.write(c_int::try_from(handles.len()).unwrap_or(c_int::MAX)) };
        }
        Ok(array)
    })
}

/// `man ibv_get_device_list`.
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the program passes NULL or an array from `c_array`, which `calloc` allocated, and
    // frees it once.
    unsafe { libc::free(list.cast()) };
}

pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    pointer(|| Ok((&raw const entry(device)?.public.name).cast::<c_char>().cast_mut()))
}

/// `man ibv_get_device_guid`: network byte order; 0 for a foreign pointer.
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    entry(device).map_or(0, |entry| entry.device.node_guid().to_be())
}

pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    minus_one(|| c_int::try_from(entry(device)?.device.index()).map_err(|_| EINVAL))
}

/// Returns the root of the device files. `roxe run` shows roxe's devices there.
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads `dir/name` into `buf` as a string without the last newline. Returns its length, or -1.
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    name: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    minus_one(|| {
        if dir.is_null() || name.is_null() || buf.is_null() || size == 0 {
            return Err(EINVAL);
        }
        // SAFETY: not NULL; the program passes C strings that are valid during the call.
        let (dir, name) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(name)) };
        // SAFETY: not NULL; the program passes `size` writable bytes that are valid during the
        // call.
        let buf = unsafe { core::slice::from_raw_parts_mut(buf.cast::<u8>(), size) };
        read_line(&dir.to_string_lossy(), &name.to_string_lossy(), buf)
    })
}

fn read_line(dir: &str, name: &str, buf: &mut [u8]) -> Result<c_int> {
    let last = buf.len().saturating_sub(1);
    let mut file = File::open(format!("{dir}/{name}"))?;
    let mut n = file.read(&mut buf[..last])?;
    if n > 0 && buf[n - 1] == b'\n' {
        n -= 1;
    }
    buf[n] = 0;
    c_int::try_from(n).map_err(|_| EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_truncated_to_its_field() {
        let name: [c_char; 4] = text("roxe0");
        assert_eq!(name.map(|c| c.to_ne_bytes()[0]), *b"rox\0");
        let short: [c_char; 4] = text("a");
        assert_eq!(short.map(|c| c.to_ne_bytes()[0]), *b"a\0\0\0");
    }

    #[test]
    fn sysfs_file_is_read_without_newline() {
        let mut buf = [0xff; 8];
        assert_eq!(read_line("/proc/sys/kernel", "ostype", &mut buf), Ok(5));
        assert_eq!(&buf[..6], b"Linux\0");
        assert_eq!(read_line("/proc", "no-such-file", &mut buf), Err(Errno(libc::ENOENT)));
        assert_eq!(read_line("/proc/sys/kernel", "ostype", &mut buf[..1]), Ok(0));
    }

    #[test]
    fn foreign_devices_are_refused() {
        assert!(device(core::ptr::null_mut()).is_err());
        // SAFETY: the functions compare the pointers with those of devices before they use them.
        unsafe {
            assert!(ibv_get_device_name(core::ptr::dangling_mut()).is_null());
            assert_eq!(ibv_get_device_guid(core::ptr::null_mut()), 0);
            assert_eq!(ibv_get_device_index(core::ptr::null_mut()), -1);
        }
    }
}
