//! The link through shared memory, between two processes of one user: a [`ring`] for each direction that is used.
//!
//! The process that wants to send makes the ring and offers it to a slot's mailbox, with three descriptors: the memory, one
//! end of a [`Line`], and its [`Doorbell`]. The other one maps the memory and says so on the line, with its own doorbell. A
//! process that wants no ring lets go of the line, and one that dies does so however it dies: then the ring is gone on both
//! sides, and whoever takes the slot later has never heard of it. Knows no queue pairs and no engine.

#[allow(unsafe_code)]
mod memory;
mod ring;

pub(crate) use ring::{Broken, Heading, MAX_RUN, Reader, SIZE, Writer, record_len};

use super::cmsg::Control;
use super::sys;
use socket2::{Domain, Socket, Type};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Descriptors of an offer.
const OFFERED: usize = 3;

/// Wakes the background thread of another process: the eventfd that it sleeps on.
#[derive(Debug)]
pub(crate) struct Doorbell(File);

impl Doorbell {
    /// From a descriptor that the other process sent. EINVAL: writing to it could block.
    fn new(fd: OwnedFd) -> io::Result<Self> {
        if sys::may_block(fd.as_raw_fd())? {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(Self(fd.into()))
    }

    /// Wakes it, or keeps it from going to sleep.
    pub(crate) fn ring(&self) {
        // Fails only if it was rung 2^64 times.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }
}

/// One end of a socket pair that tells whether the process at the other end has and keeps its half of the ring.
#[derive(Debug)]
pub(crate) struct Line(Socket);

/// What a line tells.
#[derive(Debug)]
pub(crate) enum Said {
    /// Nothing new.
    Nothing,
    /// The ring is read from now on; this wakes the reader.
    Accepted(Doorbell),
    /// The other process has let go of the ring.
    Gone,
}

impl Line {
    /// The descriptor, to wait on.
    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Reads what came without waiting.
    pub(crate) fn hear(&self) -> Said {
        let mut control = Control::new();
        match sys::recv(self.fd(), &mut [0; 8], &mut control) {
            Ok(None) => Said::Nothing,
            Ok(Some((1.., ..))) => {
                let doorbell = sys::take_descriptors(&control).into_iter().next().map(Doorbell::new);
                doorbell.and_then(Result::ok).map_or(Said::Gone, Said::Accepted)
            }
            Ok(Some(_)) | Err(_) => Said::Gone,
        }
    }

    /// Says that the ring is read from now on, and that `doorbell` wakes this process.
    fn accept(&self, doorbell: RawFd) -> io::Result<()> {
        let mut control = Control::new();
        control.push_descriptors(&[doorbell]);
        sys::send(self.fd(), None, [b"y", &[]], &control, libc::MSG_DONTWAIT).map(drop)
    }
}

/// A ring that is offered: the half that stays here, and what goes to the other process.
#[derive(Debug)]
pub(crate) struct Offer {
    /// To write, once the line says that somebody reads.
    pub(crate) writer: Writer,
    /// To the reader.
    pub(crate) line: Line,
    memory: OwnedFd,
    far_end: OwnedFd,
}

impl Offer {
    /// A new ring.
    pub(crate) fn new() -> io::Result<Self> {
        let (writer, memory) = Writer::create()?;
        let (near, far) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None)?;
        Ok(Self { writer, line: Line(near), memory, far_end: far.into() })
    }

    /// The descriptors to send; `doorbell` wakes this process.
    pub(crate) fn descriptors(&self, doorbell: RawFd) -> [RawFd; OFFERED] {
        [self.memory.as_raw_fd(), self.far_end.as_raw_fd(), doorbell]
    }
}

/// A ring of another process that this one reads.
#[derive(Debug)]
pub(crate) struct Inbound {
    /// The packets.
    pub(crate) reader: Reader,
    /// To the writer.
    pub(crate) line: Line,
    /// Wakes the writer.
    pub(crate) doorbell: Doorbell,
}

impl Inbound {
    /// Takes an offer that came with `descriptors`; `doorbell` wakes this process, and `watch` lets
    /// it hear of the line. EINVAL: it is not as ours are.
    pub(crate) fn accept(
        descriptors: Vec<OwnedFd>,
        doorbell: RawFd,
        watch: impl FnOnce(RawFd) -> io::Result<()>,
    ) -> io::Result<Self> {
        let invalid = |_| io::Error::from_raw_os_error(libc::EINVAL);
        let [memory, line, theirs] = <[OwnedFd; OFFERED]>::try_from(descriptors).map_err(invalid)?;
        let inbound =
            Self { reader: Reader::open(&memory)?, line: Line(Socket::from(line)), doorbell: Doorbell::new(theirs)? };
        watch(inbound.line.fd())?;
        inbound.line.accept(doorbell)?;
        Ok(inbound)
    }
}
