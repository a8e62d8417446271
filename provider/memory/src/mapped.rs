//! Checks that memory is mapped with the rights of a registration, and makes its pages present, as
//! pinning for hardware would. Also mappings of device memory and of descriptors.

use roxe_base::error::Error;
use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

/// Makes the pages of `length` bytes at `addr` present.
///
/// # Errors
/// EFAULT unless all are mapped readable, and writable if `write`.
pub fn check(addr: u64, length: u64, write: bool) -> Result<(), Error> {
    if length == 0 {
        return Ok(());
    }
    let fault = || {
        let rights = if write { "reading and writing" } else { "reading" };
        let advice = "map it with these rights and keep it mapped until it is deregistered";
        Error::new(libc::EFAULT, format!("{length} bytes at {addr:#x} are not mapped for {rights}; {advice}"))
    };
    let first = addr & !(page_size() - 1);
    let end = addr.checked_add(length).ok_or_else(fault)?;
    let (advice, rights) = if write { (libc::MADV_POPULATE_WRITE, "rw") } else { (libc::MADV_POPULATE_READ, "r") };
    match populate(first, end - first, advice) {
        Ok(()) => Ok(()),
        Err(libc::EINVAL) if populate(first, 0, advice).is_err() && is_listed(&maps()?, first, end, rights) => Ok(()),
        Err(_) => Err(fault()),
    }
}

/// Makes pages present; returns the errno on failure. Kernels before 5.14 fail with EINVAL even for
/// length 0.
fn populate(addr: u64, length: u64, advice: i32) -> Result<(), i32> {
    loop {
        // SAFETY: populating changes no contents and no mappings; the kernel checks the range.
        if unsafe { libc::madvise(addr as *mut c_void, length as usize, advice) } == 0 {
            return Ok(());
        }
        match io::Error::last_os_error().raw_os_error().unwrap_or(libc::EFAULT) {
            libc::EINTR | libc::EAGAIN => {}
            errno => return Err(errno),
        }
    }
}

/// Memory without an address known to the program: a part of a file or dma-buf, or device memory.
/// Mapped until dropped.
#[derive(Debug)]
pub struct Mapping {
    addr: u64,
    /// Address of the first page.
    first: u64,
    length: usize,
}

impl Mapping {
    /// Maps `length` bytes of a descriptor from `offset`.
    ///
    /// # Errors
    /// EBADF if `fd` is not open, EACCES if it is not open for these rights, EINVAL if it cannot be
    /// mapped, `length` is 0, or the range exceeds its end.
    pub fn of_fd(fd: RawFd, offset: u64, length: u64, write: bool) -> Result<Self, Error> {
        let within_page = offset & (page_size() - 1);
        let out_of_range =
            || Error::invalid(format!("{length} bytes at offset {offset} exceed the file of descriptor {fd}"));
        let end = offset.checked_add(length).filter(|end| *end > offset).ok_or_else(out_of_range)?;
        if size_of_fd(fd)?.is_some_and(|size| end > size) {
            return Err(out_of_range());
        }
        let start = libc::off_t::try_from(offset - within_page).map_err(|_| out_of_range())?;
        let pages = usize::try_from(length + within_page).map_err(|_| out_of_range())?;
        let rights = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        let first = map(pages, rights, libc::MAP_SHARED, fd, start).map_err(|e| match e.raw_os_error() {
            Some(libc::ENODEV) => Error::invalid("the descriptor cannot be mapped"),
            _ => Error::os("cannot map the descriptor", &e),
        })?;
        Ok(Self { addr: first + within_page, first, length: pages })
    }

    /// Maps `length` zeroed bytes (at least 1). A fork shares them with the child instead of
    /// copying them. Pages become present on first use.
    ///
    /// # Errors
    /// ENOMEM if the system has no memory.
    pub fn anonymous(length: u64) -> Result<Self, Error> {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let length = length as usize;
        let first = map(length, rights, flags | libc::MAP_NORESERVE, -1, 0);
        let first = first.map_err(|e| Error::os(format_args!("cannot map {length} bytes"), &e))?;
        Ok(Self { addr: first, first, length })
    }

    /// Returns the address of the first byte.
    pub fn addr(&self) -> u64 {
        self.addr
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the whole mapping, which `map` made. The key of its region is
        // removed before the value is dropped, so no access follows.
        unsafe { libc::munmap(self.first as *mut c_void, self.length) };
    }
}

fn map(length: usize, rights: i32, flags: i32, fd: RawFd, start: libc::off_t) -> io::Result<u64> {
    // SAFETY: the kernel chooses the address, and checks descriptor and range.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), length, rights, flags, fd, start) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at.expose_provenance() as u64) }
}

/// Returns the size of the descriptor's file; `None` if it reports none, like a device.
fn size_of_fd(fd: RawFd) -> Result<Option<u64>, Error> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `fstat` accepts any descriptor number and fills a `stat`.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return Err(Error::new(libc::EBADF, format!("{fd} is not an open descriptor")));
    }
    // SAFETY: the successful call has filled the structure.
    let stat = unsafe { stat.assume_init() };
    let has_size = stat.st_size > 0 || stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    Ok(u64::try_from(stat.st_size).ok().filter(|_| has_size))
}

/// Returns the page size in bytes, a power of two.
pub fn page_size() -> u64 {
    // SAFETY: the call takes no pointers.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Marks the mappings of a region, so that [`is_still_marked`] can tell them from later mappings at
/// the same address. The mark is advice (`MADV_RANDOM`) that new mappings do not have, and that has
/// no effect on memory that is not read from a file. Returns false on failure.
pub fn mark(addr: u64, length: u64) -> bool {
    let first = addr & !(page_size() - 1);
    let Some(end) = addr.checked_add(length).filter(|_| length > 0) else { return false };
    // SAFETY: the advice changes no contents; the kernel checks the range.
    unsafe { libc::madvise(first as *mut c_void, (end - first) as usize, libc::MADV_RANDOM) == 0 }
}

/// Returns true if the mappings of `length` bytes at `addr` are marked, or `/proc` cannot be read.
pub fn is_still_marked(addr: u64, length: u64) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/smaps") else { return true };
    let (mut reached, end) = (addr & !(page_size() - 1), addr.saturating_add(length));
    let mut current = None;
    for line in maps.lines() {
        if let Some((from, to, _)) = parse_mapping(line) {
            current = Some((from, to));
        } else if let (Some((from, to)), Some(flags)) = (current, line.strip_prefix("VmFlags:")) {
            let is_marked = flags.split_ascii_whitespace().any(|flag| flag == "rr");
            if from <= reached && reached < to && is_marked {
                reached = to;
            }
        }
    }
    reached >= end
}

/// Explains why the card cannot access `length` bytes at `addr`, which were mapped at registration.
pub fn why_unusable(addr: u64, length: u64, write: bool) -> String {
    let (first, end) = (addr & !(page_size() - 1), addr.saturating_add(length));
    let Ok(maps) = maps() else { return "the memory cannot be used any more".to_owned() };
    if !is_listed(&maps, first, end, "") {
        return "the memory is no longer mapped".to_owned();
    }
    match (is_listed(&maps, first, end, "r"), is_listed(&maps, first, end, "rw")) {
        (false, _) => "the memory is mapped without PROT_READ now".to_owned(),
        (true, false) if write => "the memory is mapped read-only now, without PROT_WRITE".to_owned(),
        _ => "the memory is mapped, but its file has become shorter".to_owned(),
    }
}

fn maps() -> Result<String, Error> {
    std::fs::read_to_string("/proc/self/maps").map_err(|e| Error::os("cannot read /proc/self/maps", &e))
}

/// Returns true if the mappings in `maps` (`man 5 proc_pid_maps`) cover `first..end` without a gap
/// and with `rights`, such as `rw`.
fn is_listed(maps: &str, first: u64, end: u64, rights: &str) -> bool {
    let mut reached = first;
    for line in maps.lines() {
        let Some((from, to, granted)) = parse_mapping(line) else { continue };
        if from <= reached && reached < to && granted.starts_with(rights) {
            reached = to;
        }
    }
    reached >= end
}

/// Parses the start of a line, `from-to rights`.
fn parse_mapping(line: &str) -> Option<(u64, u64, &str)> {
    let mut fields = line.split_ascii_whitespace();
    let (from, to) = fields.next()?.split_once('-')?;
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?, fields.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{PAGE_SIZE, Pages};

    fn errno(addr: u64, length: u64, write: bool) -> Option<i32> {
        check(addr, length, write).err().map(|e| e.errno())
    }

    #[test]
    fn check_reports_permissions_and_gaps() {
        let pages = Pages::new(4);
        pages.protect(1, libc::PROT_READ);
        pages.protect(2, libc::PROT_NONE);
        pages.unmap(3, 1);
        let page = |i: u64| pages.addr() + i * PAGE_SIZE;
        assert_eq!(errno(page(0) + 1, PAGE_SIZE - 1, true), None);
        assert_eq!(errno(page(0) + 1, PAGE_SIZE, true), Some(libc::EFAULT));
        assert_eq!(errno(page(0) + 1, PAGE_SIZE, false), None);
        assert_eq!(errno(page(2), 1, false), Some(libc::EFAULT));
        assert_eq!(errno(page(3), 1, false), Some(libc::EFAULT));
        assert_eq!(errno(page(3), 0, true), None);
        assert_eq!(errno(u64::MAX - 5, 100, false), Some(libc::EFAULT));
        assert_eq!(errno(0, 1, false), Some(libc::EFAULT));
    }

    #[test]
    fn truncated_file_is_not_mapped() {
        let pages = Pages::of_file(2);
        assert_eq!(errno(pages.addr(), 2 * PAGE_SIZE, true), None);
        pages.truncate_file();
        assert_eq!(errno(pages.addr(), 1, false), Some(libc::EFAULT));
    }

    #[test]
    fn unmapped_and_protected_memory_are_distinguished() {
        let pages = Pages::new(2);
        assert!(why_unusable(pages.addr(), PAGE_SIZE, true).contains("shorter"), "the mapping is usable");
        pages.protect(1, libc::PROT_READ);
        assert!(why_unusable(pages.addr(), 2 * PAGE_SIZE, true).contains("read-only"));
        pages.protect(1, libc::PROT_NONE);
        assert!(why_unusable(pages.addr(), 2 * PAGE_SIZE, false).contains("without PROT_READ"));
        assert!(why_unusable(0, PAGE_SIZE, false).contains("no longer mapped"), "the first page never is");
    }

    #[test]
    fn mapping_in_place_of_a_marked_one_is_noticed() {
        let pages = Pages::new(3);
        assert!(mark(pages.addr() + 1, 2 * PAGE_SIZE) && !mark(0, 1));
        assert!(is_still_marked(pages.addr() + 1, 2 * PAGE_SIZE));
        pages.protect(1, libc::PROT_READ);
        assert!(is_still_marked(pages.addr() + 1, 2 * PAGE_SIZE), "with any rights");
        pages.unmap(1, 1);
        assert!(!is_still_marked(pages.addr() + 1, 2 * PAGE_SIZE));
    }

    #[test]
    fn mappings_list_covers_ranges_without_gaps() {
        let maps = "1000-3000 rw-p 0 0:0 0\n3000-4000 r--p 0 0:0 0 /lib\n5000-6000 rw-p 0 0:0 0\n";
        assert!(is_listed(maps, 0x1000, 0x4000, "r"));
        assert!(is_listed(maps, 0x2000, 0x3000, "rw"));
        assert!(!is_listed(maps, 0x2000, 0x3001, "rw"));
        assert!(!is_listed(maps, 0x3000, 0x5001, "r"));
        assert!(!is_listed(maps, 0x0, 0x1001, "r"));
        let now = super::maps().unwrap();
        let pages = Pages::new(2);
        assert!(is_listed(&super::maps().unwrap(), pages.addr(), pages.addr() + 2 * PAGE_SIZE, "rw"));
        assert!(!is_listed(&now, 0x1000, 0x2000, "r"));
    }
}
