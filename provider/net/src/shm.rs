//! The link through shared memory between two processes of one user: a `ring` per used direction.
//!
//! 1. The writer creates a ring ([`Offer::new`]) and sends an offer to a slot's mailbox with three
//!    descriptors: the memory, one end of a [`ControlSocket`], and its [`Doorbell`].
//! 2. The reader maps the memory ([`Inbound::accept`]) and answers with its own doorbell.
//! 3. The writer learns that from [`ControlSocket::poll`]. Either side rings the other's doorbell
//!    when that sleeps.
//! 4. Closing the control socket, also by death, ends the ring on both sides.

#[allow(unsafe_code)]
mod memory;
mod ring;
mod wakeup;

#[cfg(any(test, feature = "fuzz"))]
pub use ring::check_ring;
pub use ring::{Broken, IpFields, MAX_RUN, Reader, Record, SIZE, SMALL, Writer, read, record_len, written};

use crate::cmsg::Control;
use crate::sys;
use socket2::{Domain, Socket, Type};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

const OFFERED: usize = 3;

/// Eventfd that the background thread of another process sleeps on.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// Wraps a descriptor of the other process. Fails with EINVAL if writing to it could block.
    fn new(fd: OwnedFd) -> io::Result<Self> {
        if sys::may_block(fd.as_raw_fd())? {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(Self(fd))
    }

    /// Wakes the thread, or ends its next sleep at once.
    pub fn ring(&self) {
        sys::wake(self.0.as_raw_fd());
    }
}

/// One end of a socket pair. It closes when the process at the other end gives up its half of the
/// ring, or dies.
#[derive(Debug)]
pub struct ControlSocket(Socket);

/// Event of the process at the other end.
#[derive(Debug)]
pub enum PeerEvent {
    /// No event.
    Nothing,
    /// The ring is being read; the doorbell wakes the reader.
    Accepted(Doorbell),
    /// The process has given up the ring.
    Gone,
}

impl ControlSocket {
    /// Returns the descriptor, to wait on.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Returns the next event, without blocking.
    pub fn poll(&self) -> PeerEvent {
        let mut control = Control::new();
        match sys::recv(self.fd(), &mut [0; 8], &mut control) {
            Ok(None) => PeerEvent::Nothing,
            Ok(Some((1.., ..))) => {
                let doorbell = sys::take_descriptors(&control).into_iter().next().map(Doorbell::new);
                doorbell.and_then(Result::ok).map_or(PeerEvent::Gone, PeerEvent::Accepted)
            }
            Ok(Some(_)) | Err(_) => PeerEvent::Gone,
        }
    }

    fn accept(&self, doorbell: RawFd) -> io::Result<()> {
        let mut control = Control::new();
        control.push_descriptors(&[doorbell]);
        sys::send(self.fd(), &sys::Name::Peer, [b"y", &[]], &control, libc::MSG_DONTWAIT).map(drop)
    }
}

/// An offered ring: the half of this process, and the descriptors for the other.
#[derive(Debug)]
pub struct Offer {
    /// The writing half, to be used once the other process has accepted.
    pub writer: Writer,
    /// Connection to the reader.
    pub control: ControlSocket,
    memory: OwnedFd,
    far_end: OwnedFd,
}

impl Offer {
    /// Creates a ring with `size` bytes of data.
    pub fn new(size: usize) -> io::Result<Self> {
        let (writer, memory) = Writer::create(size)?;
        let (near, far) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None)?;
        Ok(Self { writer, control: ControlSocket(near), memory, far_end: far.into() })
    }

    /// Returns the descriptors to send; `doorbell` wakes this process.
    pub fn descriptors(&self, doorbell: RawFd) -> [RawFd; OFFERED] {
        [self.memory.as_raw_fd(), self.far_end.as_raw_fd(), doorbell]
    }
}

/// Both halves of a ring from this process to itself.
#[derive(Debug)]
pub struct OwnRing {
    /// The writing half.
    pub writer: Writer,
    /// The writer's connection to the reader.
    pub control: ControlSocket,
    /// Wakes the reader.
    pub doorbell: Doorbell,
    /// The reading half.
    pub inbound: Inbound,
}

impl OwnRing {
    /// Creates a ring with `size` bytes of data. `doorbell` wakes this process; `watch` is called
    /// with the control sockets to wait on.
    pub fn new(size: usize, doorbell: RawFd, watch: impl Fn(RawFd) -> io::Result<()>) -> io::Result<Self> {
        let Offer { writer, control, memory, far_end } = Offer::new(size)?;
        watch(control.fd())?;
        let inbound = Inbound::accept(size, vec![memory, far_end, sys::duplicate(doorbell)?], doorbell, watch)?;
        match control.poll() {
            PeerEvent::Accepted(doorbell) => Ok(Self { writer, control, doorbell, inbound }),
            PeerEvent::Nothing | PeerEvent::Gone => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

/// A ring that this process reads.
#[derive(Debug)]
pub struct Inbound {
    /// Reading side of the ring.
    pub reader: Reader,
    /// Connection to the writer.
    pub control: ControlSocket,
    /// Wakes the writer.
    pub doorbell: Doorbell,
}

impl Inbound {
    /// Accepts an offer of a ring with `size` bytes of data and these `descriptors`. `doorbell`
    /// wakes this process; `watch` is called with the control socket to wait on. Fails with EINVAL
    /// if the memory or a descriptor is not as this library makes them.
    pub fn accept(
        size: usize,
        descriptors: Vec<OwnedFd>,
        doorbell: RawFd,
        watch: impl FnOnce(RawFd) -> io::Result<()>,
    ) -> io::Result<Self> {
        let invalid = |_| io::Error::from_raw_os_error(libc::EINVAL);
        let [memory, control, theirs] = <[OwnedFd; OFFERED]>::try_from(descriptors).map_err(invalid)?;
        let inbound = Self {
            reader: Reader::open(&memory, size)?,
            control: ControlSocket(Socket::from(control)),
            doorbell: Doorbell::new(theirs)?,
        };
        watch(inbound.control.fd())?;
        inbound.control.accept(doorbell)?;
        Ok(inbound)
    }
}

/// Both sides of a ring, for tests.
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing {
    use super::*;

    /// Passes descriptors as to another process.
    pub fn carry(descriptors: &[RawFd]) -> Vec<OwnedFd> {
        let (from, to) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        let (mut sent, mut got) = (Control::new(), Control::new());
        sent.push_descriptors(descriptors);
        sys::send(from.as_raw_fd(), &sys::Name::Peer, [b"x", &[]], &sent, 0).unwrap();
        sys::recv(to.as_raw_fd(), &mut [0; 8], &mut got).unwrap().unwrap();
        sys::take_descriptors(&got)
    }

    /// Returns the parts of an offer that its process keeps.
    pub fn keep(offer: Offer) -> (Writer, ControlSocket) {
        (offer.writer, offer.control)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{carry, keep};
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    /// Creates a stand-in for an eventfd, and its other end.
    fn bell() -> (UnixStream, UnixStream) {
        let (bell, ear) = UnixStream::pair().unwrap();
        bell.set_nonblocking(true).unwrap();
        (bell, ear)
    }

    fn accept(offer: &Offer, ours: &UnixStream, theirs: &UnixStream) -> io::Result<Inbound> {
        Inbound::accept(SMALL, carry(&offer.descriptors(ours.as_raw_fd())), theirs.as_raw_fd(), |_| Ok(()))
    }

    #[test]
    fn agreed_ring_wakes_both_sides_and_reports_end() {
        let ((bell_a, mut ear_a), (bell_b, mut ear_b)) = (bell(), bell());
        let offer = Offer::new(SMALL).unwrap();
        assert!(matches!(offer.control.poll(), PeerEvent::Nothing));
        let inbound = accept(&offer, &bell_a, &bell_b).unwrap();
        let PeerEvent::Accepted(doorbell) = offer.control.poll() else { panic!("accepted") };
        let mut rung = [0; 8];
        doorbell.ring();
        ear_b.read_exact(&mut rung).unwrap();
        inbound.doorbell.ring();
        ear_a.read_exact(&mut rung).unwrap();
        let (writer, control) = keep(offer);
        assert!(matches!(control.poll(), PeerEvent::Nothing) && matches!(inbound.control.poll(), PeerEvent::Nothing));
        drop(inbound);
        assert!(matches!(control.poll(), PeerEvent::Gone));
        drop(writer);
        let offer = Offer::new(SMALL).unwrap();
        let inbound = accept(&offer, &bell_a, &bell_b).unwrap();
        drop(offer);
        assert!(matches!(inbound.control.poll(), PeerEvent::Gone));
    }

    #[test]
    fn invalid_offer_descriptors_are_refused() {
        let ((bell, _ear), (blocking, _)) = (bell(), UnixStream::pair().unwrap());
        let (fd, watch) = (bell.as_raw_fd(), |_| Ok(()));
        for wrong in [vec![], carry(&[fd]), carry(&[fd, fd, fd]), carry(&[fd, fd, fd, fd])] {
            assert!(Inbound::accept(SMALL, wrong, fd, watch).is_err());
        }
        let offer = Offer::new(SMALL).unwrap();
        let error = accept(&offer, &blocking, &bell).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "ringing could block");
        let (_writer, control) = keep(offer);
        assert!(matches!(control.poll(), PeerEvent::Gone), "the other end sees the refusal");
    }

    #[test]
    fn acceptance_without_doorbell_ends_ring() {
        let offer = Offer::new(SMALL).unwrap();
        let far = ControlSocket(Socket::from(offer.far_end.try_clone().unwrap()));
        sys::send(far.fd(), &sys::Name::Peer, [b"y", &[]], &Control::new(), 0).unwrap();
        assert!(matches!(offer.control.poll(), PeerEvent::Gone));
        let (blocking, _ear) = UnixStream::pair().unwrap();
        far.accept(blocking.as_raw_fd()).unwrap();
        assert!(matches!(offer.control.poll(), PeerEvent::Gone));
    }
}
