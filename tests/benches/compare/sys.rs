//! System calls that the standard library lacks: socket options, and memory that two processes
//! share.

use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;

/// Splits longer datagrams into datagrams of this size (UDP_SEGMENT); 0 turns this off.
pub(crate) fn set_segment(socket: &UdpSocket, bytes: usize) -> io::Result<()> {
    set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, bytes)
}

/// Receives the segments of one send together (UDP_GRO).
pub(crate) fn set_gro(socket: &UdpSocket) -> io::Result<()> {
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Requests a receive buffer of this number of bytes.
pub(crate) fn set_rcvbuf(socket: &UdpSocket, bytes: usize) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)
}

fn set_option(socket: &UdpSocket, level: libc::c_int, name: libc::c_int, value: usize) -> io::Result<()> {
    let value = libc::c_int::try_from(value).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open for the life of `socket`, and the kernel reads four bytes from
    // `value`, which is a C int on this stack.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), 4) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Fills `buffer` from the address `at` in the child `pid`.
pub(crate) fn read_process(pid: u32, at: u64, buffer: &mut [u8]) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let here = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let there = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(at as usize), ..here };
    // SAFETY: the kernel writes into `buffer` only, and checks the addresses of the other process.
    let count = unsafe { libc::process_vm_readv(pid, &raw const here, 1, &raw const there, 1, 0) };
    match usize::try_from(count) {
        Ok(count) if count == buffer.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Memory that child processes inherit by its descriptor.
pub(crate) struct Shared {
    file: File,
    start: NonNull<u8>,
    len: usize,
}

impl Shared {
    /// Creates memory that is all zero.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        // SAFETY: the name is a C string. Without flags the descriptor is inherited, as intended.
        let fd = unsafe { libc::memfd_create(c"roxe-bench".as_ptr(), 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(len as u64)?;
        Self::map(file, len)
    }

    /// Maps the memory of an inherited descriptor.
    pub(crate) fn inherited(fd: libc::c_int, len: usize) -> io::Result<Self> {
        // SAFETY: the parent opened this descriptor for this process, and nothing else here owns
        // it.
        Self::map(unsafe { File::from_raw_fd(fd) }, len)
    }

    fn map(file: File, len: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
        Ok(Self { file, start, len })
    }

    /// Returns the descriptor.
    pub(crate) fn fd(&self) -> libc::c_int {
        self.file.as_raw_fd()
    }

    /// Returns the address of the memory in this process, which is at a page boundary.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping of this length, and no pointer into it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
