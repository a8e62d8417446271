//! Ownership of queue pair numbers by processes, without a daemon.
//!
//! The upper 12 bits of a QPN are its *slot*. A process owns a slot while it holds a Unix datagram
//! socket named after interface and slot ([`crate::named`]): claiming is atomic, and death ends the
//! claim. The socket is also the slot's mailbox for frames of [`crate::forward`]. Only the same
//! user can bind or reach such a name; frames of other users (root) are discarded.

use crate::cmsg::Control;
use crate::named::{NamedSocket, Probe};
use crate::runtime_dir::RuntimeDir;
use crate::sys;
use roxe_base::random;
use roxe_wire::Qpn;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

const INDEX_BITS: u32 = 12;
/// QPNs per slot.
pub const QPNS_PER_SLOT: u32 = 1 << INDEX_BITS;
/// Slot 0 holds the QPNs with a fixed meaning (0 and 1), the last slot that of multicast.
const SLOTS: std::ops::Range<u16> = 1..0xfff;
/// Requested receive buffer in bytes: a few forwarded runs of 64 KB.
const MAILBOX_SIZE: usize = 4 << 20;

/// The upper 12 bits of a queue pair number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u16);

impl Slot {
    /// Returns the slot of `qpn`.
    pub const fn of(qpn: Qpn) -> Self {
        Self((qpn.get() >> INDEX_BITS) as u16)
    }

    /// Creates the slot with this number, below 4096.
    pub const fn new(number: u16) -> Self {
        Self(number & 0xfff)
    }

    /// Returns the number, below 4096.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Returns true if a process can own the slot.
    pub fn can_be_owned(self) -> bool {
        SLOTS.contains(&self.0)
    }

    /// Returns the `index`-th QPN of this slot.
    pub const fn qpn(self, index: u32) -> Qpn {
        Qpn::new(((self.0 as u32) << INDEX_BITS) | (index & (QPNS_PER_SLOT - 1)))
    }
}

/// A slot of this process.
#[derive(Debug)]
pub struct SlotSocket {
    slot: Slot,
    ifindex: u32,
    socket: NamedSocket,
}

impl SlotSocket {
    /// Claims a free slot of the interface, starting at a random one. Fails with `ENOSPC` if all
    /// are owned.
    pub fn claim(ifindex: u32) -> io::Result<Self> {
        match Self::claim_any(ifindex) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
            result => return result,
        }
        // Names of dead processes are removed only when no other slot is free.
        RuntimeDir::get()?.sweep();
        Self::claim_any(ifindex).map_err(|e| match e.kind() {
            io::ErrorKind::AddrInUse => io::Error::from_raw_os_error(libc::ENOSPC),
            _ => e,
        })
    }

    fn claim_any(ifindex: u32) -> io::Result<Self> {
        let count = SLOTS.end - SLOTS.start;
        // Random, so that processes do not contend for the same slots.
        let first = random::number()? as u16 % count;
        let slot = |step: u16| Slot(SLOTS.start + (first + step) % count);
        let (at, socket) = NamedSocket::bind_first((0..count).map(|step| SlotName { ifindex, slot: slot(step) }))?;
        Ok(Self { slot: slot(at as u16), ifindex, socket: with_room(socket)? })
    }

    /// Claims `slot`; `EADDRINUSE` if a process owns it.
    #[cfg(any(test, feature = "testing"))]
    pub fn claim_one(ifindex: u32, slot: Slot) -> io::Result<Self> {
        Ok(Self { slot, ifindex, socket: mailbox(&SlotName { ifindex, slot })? })
    }

    /// Returns the slot.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    pub(super) fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Returns the descriptor, to wait on.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Sends `header` and `body` as one frame to the owner of `to` without blocking. Errors:
    /// `ECONNREFUSED` if no process owns it; `EAGAIN` if its mailbox is full.
    pub fn send(&self, to: Slot, header: &[u8], body: &[u8]) -> io::Result<()> {
        self.send_to(&SlotName { ifindex: self.ifindex, slot: to }, header, body)
    }

    /// Sends a frame to the mailbox `name`. Errors as [`SlotSocket::send`].
    pub(super) fn send_to(&self, name: &impl fmt::Display, header: &[u8], body: &[u8]) -> io::Result<()> {
        self.send_with(name, [header, body], &Control::new())
    }

    /// Sends `header` with descriptors. Errors as [`SlotSocket::send`].
    pub fn send_descriptors(&self, to: Slot, header: &[u8], fds: &[RawFd]) -> io::Result<()> {
        let mut control = Control::new();
        control.push_descriptors(fds);
        self.send_with(&SlotName { ifindex: self.ifindex, slot: to }, [header, &[]], &control)
    }

    fn send_with(&self, name: &impl fmt::Display, parts: [&[u8]; 2], control: &Control) -> io::Result<()> {
        for address in self.socket.space().addresses(name) {
            match sys::send(self.fd(), &sys::Name::Any(&address?), parts, control, libc::MSG_DONTWAIT) {
                // The owner has died, or no process has ever had this name.
                Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {}
                sent => return sent.map(drop),
            }
        }
        Err(io::ErrorKind::ConnectionRefused.into())
    }

    /// Does as [`recv_frame`] with a new buffer for control messages.
    #[cfg(any(test, feature = "testing"))]
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
        recv_frame(self.fd(), buf, &mut Control::new())
    }
}

/// Returns true if a process owns `slot` of the interface `ifindex`.
pub fn is_owned(ifindex: u32, slot: Slot) -> bool {
    slot.can_be_owned() && Probe::new().is_ok_and(|probe| probe.finds(&SlotName { ifindex, slot }))
}

/// Opens a new socket named `name` that receives the sender's credentials.
pub(super) fn mailbox(name: &impl fmt::Display) -> io::Result<NamedSocket> {
    NamedSocket::bind(name).and_then(with_room)
}

fn with_room(socket: NamedSocket) -> io::Result<NamedSocket> {
    socket.set_recv_buffer_size(MAILBOX_SIZE)?;
    socket.set_send_buffer_size(MAILBOX_SIZE)?;
    Ok(socket)
}

/// Receives one frame of the same user without blocking, with its descriptors; frames of other
/// users are discarded. For `control` see [`UdpLink::recv_with`](crate::udp::UdpLink::recv_with).
#[inline]
pub fn recv_frame(fd: RawFd, buf: &mut [u8], control: &mut Control) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    while let Some((len, ..)) = sys::recv(fd, buf, control)? {
        if let Some(descriptors) = descriptors_of_same_user(control) {
            return Ok(Some((len, descriptors)));
        }
    }
    Ok(None)
}

#[inline(never)]
fn descriptors_of_same_user(control: &Control) -> Option<Vec<OwnedFd>> {
    let descriptors = sys::take_descriptors(control);
    (sys::credentials(control) == Some(roxe_base::privilege::effective_uid())).then_some(descriptors)
}

struct SlotName {
    ifindex: u32,
    slot: Slot,
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot-{:x}-{:03x}", self.ifindex, self.slot.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // No interface has these indices, so tests do not meet running programs.
    const NOWHERE: u32 = 0x7000_0001;

    #[test]
    fn slot_has_one_owner_and_is_free_after_its_end() {
        let first = SlotSocket::claim_one(NOWHERE, Slot::new(5)).unwrap();
        let error = SlotSocket::claim_one(NOWHERE, Slot::new(5)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        SlotSocket::claim_one(NOWHERE, Slot::new(5)).unwrap();
    }

    #[test]
    fn claims_differ_and_omit_fixed_numbers() {
        let slots: Vec<_> = (0..50).map(|_| SlotSocket::claim(NOWHERE + 1).unwrap()).collect();
        let mut numbers: Vec<_> = slots.iter().map(|slot| slot.slot().get()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 50);
        assert!(numbers.iter().all(|number| (1..0xfff).contains(number)));
    }

    #[test]
    fn frames_reach_only_the_owner() {
        let (a, b) = (SlotSocket::claim(NOWHERE + 2).unwrap(), SlotSocket::claim(NOWHERE + 2).unwrap());
        assert!(is_owned(NOWHERE + 2, b.slot()) && is_owned(NOWHERE + 2, a.slot()));
        a.send(b.slot(), b"head", b"body").unwrap();
        let mut buf = [0; 64];
        assert!(matches!(b.recv(&mut buf).unwrap(), Some((8, fds)) if fds.is_empty()));
        assert_eq!(&buf[..8], b"headbody");
        assert!(b.recv(&mut buf).unwrap().is_none());
        let gone = b.slot();
        drop(b);
        assert!(!is_owned(NOWHERE + 2, gone) && !is_owned(NOWHERE + 2, Slot::new(0)));
        assert_eq!(a.send(gone, b"", b"x").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn qpn_is_slot_and_index() {
        let qpn = Slot::new(0xabc).qpn(0xdef);
        assert_eq!(qpn.get(), 0x00ab_cdef);
        assert_eq!(Slot::of(qpn), Slot::new(0xabc));
        assert_eq!(Slot::of(Qpn::GSI), Slot::new(0));
        assert_eq!(Slot::of(Qpn::MULTICAST), Slot::new(0xfff));
    }
}
