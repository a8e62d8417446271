//! Memory shared with one other process. Unsafe code: a sealed memfd, mapped, and bytes copied
//! in and out.
//!
//! The file is a page of atomic words, and data written by one side, whose headers are atomic words
//! too. Its size is sealed, so that the other process cannot cause `SIGBUS`. The data is mapped
//! twice in a row, so that ranges which wrap around are contiguous. The other process may change
//! any byte at any time: bytes are written with atomics or the instructions of
//! [`roxe_memory::guard`], and read by copying with those.

use crate::sys::check;
use roxe_memory::guard::SharedBytes;
use roxe_transport::cx::TxRoom;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes before the data: a multiple of every Linux page size.
const CONTROL_LEN: usize = 64 << 10;
/// Size of a word in bytes.
const WORD_LEN: usize = size_of::<AtomicU64>();
/// Size of a cache line in words.
const LINE_WORDS: usize = 8;
/// Seals against resizing by the other process.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Control words by offset. Each has two cache lines, because processors prefetch lines in pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Word {
    /// Total bytes read. Written by the reader.
    Head = 0,
    /// Not 0 while the reader sleeps. Set by the reader, cleared by the writer.
    Asleep = 128,
    /// Not 0 while the writer waits for the head to reach this value. Set by the writer, cleared by
    /// the reader.
    WakeAt = 256,
}

#[derive(Debug)]
pub(super) struct SharedMemory {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping belongs to the value, not to a thread.
unsafe impl Send for SharedMemory {}
// SAFETY: a shared reference gives access to atomic words and bytes, and to copies of the data,
// only.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Creates memory with `size` bytes of data, a power of two and a multiple of 64 KiB, and the
    /// file for the other process. Fails with EFBIG if it exceeds the file size limit.
    pub(super) fn create(size: usize) -> io::Result<(Self, OwnedFd)> {
        // SAFETY: the name is a constant with its terminating zero.
        let fd = unsafe { libc::memfd_create(c"roxe".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        check(fd)?;
        // SAFETY: `fd` is a new descriptor without another owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let len = libc::off_t::try_from(CONTROL_LEN + size).map_err(io::Error::other)?;
        check_file_size(CONTROL_LEN + size)?;
        // SAFETY: these calls take no pointers.
        unsafe {
            check(libc::ftruncate(fd.as_raw_fd(), len))?;
            check(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS))?;
        }
        Ok((Self::map(&fd, size)?, fd))
    }

    /// Opens memory of another process. Fails with EINVAL unless made by [`SharedMemory::create`].
    pub(super) fn open(fd: &OwnedFd, size: usize) -> io::Result<Self> {
        // SAFETY: an all-zero stat is valid, and the call fills it.
        let stat = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            check(libc::fstat(fd.as_raw_fd(), &raw mut stat))?;
            stat
        };
        // SAFETY: the call takes no pointers.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        check(seals)?;
        if seals & SEALS != SEALS || usize::try_from(stat.st_size).ok() != Some(CONTROL_LEN + size) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Self::map(fd, size)
    }

    fn map(fd: &OwnedFd, size: usize) -> io::Result<Self> {
        if !size.is_power_of_two() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: the call creates a mapping at an address that the kernel chooses, so it replaces
        // none.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                CONTROL_LEN + 2 * size,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let base = NonNull::new(base.cast::<u8>()).filter(|base| base.as_ptr().cast() != libc::MAP_FAILED);
        // From here on dropping the value unmaps the reservation.
        let memory = Self { base: base.ok_or_else(io::Error::last_os_error)?, size };
        memory.map_part(fd, 0, 0, CONTROL_LEN + size)?;
        memory.map_part(fd, CONTROL_LEN + size, CONTROL_LEN, size)?;
        Ok(memory)
    }

    /// Maps `len` bytes of the file from offset `from` over the reservation at `at`.
    fn map_part(&self, fd: &OwnedFd, at: usize, from: usize, len: usize) -> io::Result<()> {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        let from = libc::off_t::try_from(from).map_err(io::Error::other)?;
        // SAFETY: `at..at + len` is inside the reservation of this value, which no reference points
        // into yet.
        let mapped = unsafe { libc::mmap(self.base.as_ptr().add(at).cast(), len, rights, flags, fd.as_raw_fd(), from) };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub(super) fn size(&self) -> u64 {
        self.size as u64
    }

    pub(super) fn word(&self, word: Word) -> &AtomicU64 {
        // SAFETY: the word is aligned, is inside the mapping, which lives as long as `self`, and
        // both processes access it by atomic operations only.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(word as usize).cast()) }
    }

    /// Returns the word at position `at` of the data, a multiple of 8.
    #[inline]
    pub(super) fn header(&self, at: u64) -> &AtomicU64 {
        // SAFETY: the word is inside the first mapping of the data, which lives as long as `self`,
        // and is aligned by the mask. Both processes access headers by atomic operations only. The
        // writer may write bytes over an old header, which the reader does not read then: it reads
        // none within the bytes of a record.
        unsafe { AtomicU64::from_ptr(self.data(at & !7).cast()) }
    }

    /// Copies data from position `at`, which continues to count beyond the end of the data. Copies
    /// nothing if `out` is longer than the data.
    pub(super) fn read(&self, at: u64, out: &mut [u8]) {
        // Mapped memory cannot fault.
        let _ = self.view(at, out.len()).map(|bytes| bytes.copy_to(out));
    }

    /// Returns the bytes from position `at`, written by the other process, which may change them at
    /// any time; `None` if they exceed the data.
    pub(super) fn view(&self, at: u64, len: usize) -> Option<SharedBytes<'_>> {
        // SAFETY: `start < size` and `len <= size`, so the bytes lie in the two mappings of the
        // data, which stay while `self` is borrowed.
        (len <= self.size).then(|| unsafe { SharedBytes::new(self.data(at), len) })
    }

    /// Returns room from position `at`; `None` if it exceeds the data. A broken reader may change
    /// it, which affects only itself.
    pub(super) fn room(&self, at: u64, len: usize) -> Option<TxRoom<'_>> {
        // SAFETY: the room lies in the two mappings of the data as for `view`, and its bytes may
        // change behind a reference to atomics.
        (len <= self.size).then(|| TxRoom::Shared(unsafe { slice::from_raw_parts(self.data(at).cast(), len) }))
    }

    /// Copies `words` to position `at`, a multiple of 8; nothing if they exceed the data.
    #[inline]
    pub(super) fn put(&self, at: u64, words: &[[u8; WORD_LEN]]) {
        if size_of_val(words) > self.size {
            return;
        }
        // SAFETY: the words lie in the two mappings of the data as for `view`, and are aligned by
        // the mask.
        let room: &[AtomicU64] = unsafe { slice::from_raw_parts(self.data(at & !7).cast(), words.len()) };
        let ((lines, room), (staged, words)) = (room.as_chunks::<LINE_WORDS>(), words.as_chunks::<LINE_WORDS>());
        // Usually whole lines, each without a loop.
        for (to, from) in lines.iter().zip(staged) {
            let ([a, b, c, d, e, f, g, h], [i, j, k, l, m, n, o, p]) = (to, from);
            for (to, from) in [(a, i), (b, j), (c, k), (d, l), (e, m), (f, n), (g, o), (h, p)] {
                to.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
            }
        }
        for (to, from) in room.iter().zip(words) {
            to.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
    }

    fn data(&self, at: u64) -> *mut u8 {
        // The size is a power of two; a division would be slow.
        let start = at as usize & (self.size - 1);
        // SAFETY: `CONTROL + start` is inside the mapping.
        unsafe { self.base.as_ptr().add(CONTROL_LEN + start) }
    }
}

/// Returns EFBIG if the file size limit of the process (`ulimit -f`) is below `len`. The kernel
/// applies it to memfds, too, and would raise SIGXFSZ.
fn check_file_size(len: usize) -> io::Result<()> {
    // SAFETY: an all-zero rlimit is valid, and the call fills it.
    let limit = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        check(libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit))?;
        limit.rlim_cur
    };
    if len as u64 > limit { Err(io::Error::from_raw_os_error(libc::EFBIG)) } else { Ok(()) }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference into it outlives the value.
        unsafe { libc::munmap(self.base.as_ptr().cast(), CONTROL_LEN + 2 * self.size) };
    }
}

const _: () = assert!(Word::WakeAt as usize + size_of::<AtomicU64>() <= CONTROL_LEN);

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    const SIZE: usize = 64 << 10;

    #[test]
    fn mappings_share_words_and_wrapping_bytes() {
        let (a, fd) = SharedMemory::create(SIZE).unwrap();
        let b = SharedMemory::open(&fd, SIZE).unwrap();
        a.word(Word::WakeAt).store(7, Ordering::Relaxed);
        assert_eq!(b.word(Word::WakeAt).load(Ordering::Relaxed), 7);
        assert_eq!(b.word(Word::Head).load(Ordering::Relaxed), 0);
        let at = 3 * SIZE as u64 - 5;
        a.room(at, 10).unwrap().put(b"0123456789").unwrap();
        let mut out = [0; 10];
        b.read(at, &mut out);
        assert_eq!(&out, b"0123456789");
        b.read(0, &mut out[..5]);
        assert_eq!(&out[..5], b"56789");
        assert_eq!(b.view(at, 10).unwrap().to_vec(), b"0123456789");
        assert!(a.room(0, SIZE + 1).is_none() && b.view(0, SIZE + 1).is_none());
        a.put(2 * SIZE as u64 - 8, &[*b"abcdefgh", *b"ijklmnop"]);
        a.put(0, &vec![[0xff; 8]; SIZE / 8 + 1]);
        assert_eq!(b.view(SIZE as u64 - 8, 18).unwrap().to_vec(), b"abcdefghijklmnop\0\0");
    }

    #[test]
    fn memory_beyond_file_size_limit_is_efbig() {
        const VARIABLE: &str = "ROXE_TEST_FILE_SIZE";
        // The limit applies to a whole process, so the test starts another.
        if std::env::var_os(VARIABLE).is_some() {
            let error = SharedMemory::create(SIZE).unwrap_err();
            return assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
        }
        let script = "ulimit -f 64; exec \"$0\" memory_beyond_file_size_limit_is_efbig";
        let own = std::env::current_exe().unwrap();
        let status = std::process::Command::new("sh").args(["-c", script]).arg(own).env(VARIABLE, "1").status();
        assert!(status.unwrap().success());
    }

    #[test]
    fn size_is_sealed() {
        let (_a, fd) = SharedMemory::create(SIZE).unwrap();
        let file = File::from(fd);
        assert!(file.set_len(0).is_err() && file.set_len(1 << 20).is_err());
    }

    #[test]
    fn other_files_are_refused() {
        assert!(SharedMemory::open(&File::open("/dev/zero").unwrap().into(), SIZE).is_err());
        let (_a, fd) = SharedMemory::create(SIZE).unwrap();
        assert!(SharedMemory::open(&fd, 2 * SIZE).is_err());
        // SAFETY: the name is a constant with its terminating zero; the descriptor is new.
        let unsealed = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"x".as_ptr(), libc::MFD_ALLOW_SEALING)) };
        let unsealed = File::from(unsealed);
        unsealed.set_len((CONTROL_LEN + SIZE) as u64).unwrap();
        assert_eq!(SharedMemory::open(&unsealed.into(), SIZE).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
