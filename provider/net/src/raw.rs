//! The raw link: Ethernet frames of one network interface (`man 7 packet`). Needs CAP_NET_RAW.
//!
//! A [`FrameSender`] is bound to no protocol and receives nothing. A [`FrameReceiver`] gets a copy
//! of every received frame, in addition to the network stack of the host. Sent frames for a group
//! or for the interface itself are received as well, as on a card with local loopback; on the
//! loopback interface the kernel already does that, so sent frames are filtered out there.
//! `pnet_datalink` is not used, because it moves one frame per system call and does not restore the
//! VLAN tag.

#[allow(unsafe_code)]
mod sys;

use crate::bpf::{DROP, JUMP_EQ, JUMP_SET, LOAD_BYTE, LOAD_HALF, LOAD_WORD, PASS, jump, op};
use crate::link::{Run, SendError, Taken, TxQueue};
use crate::sys as socket;
use crate::sys::SendRoom;

use libc::sock_filter;
use roxe_base::error::Error;
use roxe_wire::Qpn;
use roxe_wire::frame::{ETH_LEN, TAG_LEN};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// Requested size in bytes of the send and receive buffers.
const BUFFER_LEN: usize = 8 << 20;
/// Size in bytes of the receive area, unless one frame needs more.
const AREA_LEN: usize = 128 << 10;
/// Length in bytes of the two addresses before a VLAN tag.
const ADDRESSES_LEN: usize = ETH_LEN - 2;

/// A network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Interface index (`if_nametoindex`).
    pub index: u32,
    /// MAC address; all zero on loopback.
    pub mac: [u8; 6],
    /// Maximum frame size in bytes, including a VLAN tag.
    pub max_frame: usize,
}

impl Interface {
    fn is_loopback(&self) -> bool {
        self.mac == [0; 6]
    }
}

/// Sends frames without blocking; frames that find the send buffer full are queued.
#[derive(Debug)]
pub struct FrameSender {
    socket: Socket,
    queue: Arc<TxQueue>,
}

/// Queue entry of a frame.
const FRAME: Run = Run { to: None, segment: usize::MAX };

impl FrameSender {
    /// Opens the interface; `room` watches the send buffer. Fails with EPERM if CAP_NET_RAW is
    /// missing, EOPNOTSUPP if the interface does not carry Ethernet frames.
    pub fn open(interface: &Interface, room: &Arc<SendRoom>) -> Result<Self, Error> {
        let socket = open(interface).map_err(|e| explain(&e))?;
        if !sys::carries_ethernet(&socket).map_err(|e| explain(&e))? {
            return Err(Error::new(libc::EOPNOTSUPP, "the network interface does not carry Ethernet frames"));
        }
        let queue = Arc::new(TxQueue::new(room));
        Ok(Self { socket, queue })
    }

    /// Passes some of `frames` to the kernel and returns their number; an error concerns the first.
    pub fn send<'a>(&self, frames: impl Iterator<Item = &'a [u8]>) -> Result<usize, SendError> {
        sys::send(self.socket.as_raw_fd(), frames).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => SendError::Full,
            _ => SendError::Lost,
        })
    }

    /// Sends one frame, or queues it after others.
    pub fn send_later(&self, frame: &[u8]) -> Result<Taken, SendError> {
        self.queue.send(
            FRAME,
            frame,
            |_| self.socket.as_raw_fd(),
            |_, frame| self.send(std::iter::once(frame)).map(drop),
        )
    }

    /// Frames that wait for room in the send buffer.
    pub fn queue(&self) -> &Arc<TxQueue> {
        &self.queue
    }

    /// Sends queued frames as far as there is room and reports each result. Returns the waiting
    /// queue pairs once the queue is empty.
    pub fn send_queued(&self, report: impl FnMut(&Run, usize, Result<(), SendError>)) -> Vec<Qpn> {
        self.queue.drain(|_| self.socket.as_raw_fd(), |_, frame| self.send(std::iter::once(frame)).map(drop), report)
    }
}

/// Frames to be received in addition to those for the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxFilter {
    /// Frames for this address.
    Address([u8; 6]),
    /// Frames for any group.
    Groups,
    /// All frames.
    Everything,
}

/// Packet socket that receives Ethernet frames.
#[derive(Debug)]
pub struct FrameReceiver {
    socket: Socket,
    interface: Interface,
    area: Vec<u8>,
    slot: usize,
    frames: Vec<Range<usize>>,
    /// Number of frames longer than the interface carries: the kernel coalesces TCP segments.
    oversized: u64,
}

impl FrameReceiver {
    /// Opens the interface; from now on the kernel queues its frames. Errors as
    /// [`FrameSender::open`].
    pub fn open(interface: Interface) -> Result<Self, Error> {
        let slot = (TAG_LEN + interface.max_frame).next_multiple_of(64);
        let count = (AREA_LEN / slot).clamp(1, sys::MAX_RECV);
        let socket = Self::listen(&interface).map_err(|e| explain(&e))?;
        let (area, frames) = (vec![0; slot * count], Vec::with_capacity(count));
        Ok(Self { socket, interface, area, slot, frames, oversized: 0 })
    }

    fn listen(interface: &Interface) -> io::Result<Socket> {
        // Bound last, so that no frame arrives before the filter is attached.
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))?;
        socket::attach_filter(socket.as_raw_fd(), libc::SO_ATTACH_FILTER, &mut filter(interface))?;
        if socket::set_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER_LEN as i32).is_err() {
            // Without CAP_NET_ADMIN the kernel limits the size.
            socket.set_recv_buffer_size(BUFFER_LEN)?;
        }
        socket::set_option(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
        socket.bind(&sys::address(interface.index, libc::ETH_P_ALL as u16)?)?;
        Ok(socket)
    }

    /// Returns the descriptor, to wait on.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Adds or removes a filter; each addition needs its own removal.
    pub fn set_filter(&self, filter: RxFilter, add: bool) -> io::Result<()> {
        let (kind, mac) = match filter {
            _ if self.interface.is_loopback() => return Ok(()),
            RxFilter::Address(mac) if mac == self.interface.mac => return Ok(()),
            RxFilter::Address(mac) if mac[0] & 1 != 0 => (libc::PACKET_MR_MULTICAST, mac),
            RxFilter::Address(mac) => (libc::PACKET_MR_UNICAST, mac),
            RxFilter::Groups => (libc::PACKET_MR_ALLMULTI, [0; 6]),
            RxFilter::Everything => (libc::PACKET_MR_PROMISC, [0; 6]),
        };
        sys::set_membership(self.fd(), self.interface.index, kind as u16, mac, add)
    }

    /// Receives up to a batch of frames without blocking. Returns true if the batch was full.
    pub fn recv(&mut self) -> io::Result<bool> {
        let Self { socket, area, slot, frames, oversized, interface, .. } = self;
        frames.clear();
        let mut count = 0;
        let batch = area.len() / *slot;
        sys::recv(socket.as_raw_fd(), area, *slot, TAG_LEN, |area, start, len, tag| {
            count += 1;
            let tag_len = if tag.is_some() { TAG_LEN } else { 0 };
            if len + tag_len > interface.max_frame {
                *oversized += 1;
                return;
            }
            let first = start - tag_len;
            if let Some(tag) = tag {
                restore_tag(area.get_mut(first..start + len).unwrap_or_default(), tag);
            }
            frames.push(first..start + len);
        })?;
        Ok(count == batch)
    }

    /// Returns the frames of the last [`FrameReceiver::recv`].
    pub fn frames(&self) -> impl Iterator<Item = &[u8]> {
        self.frames.iter().filter_map(|range| self.area.get(range.clone()))
    }

    /// Returns the number of oversized frames dropped since the last call.
    pub fn take_oversized(&mut self) -> u64 {
        std::mem::take(&mut self.oversized)
    }
}

/// Inserts the VLAN tag after the addresses of a frame, which starts [`TAG_LEN`] bytes into
/// `room`.
fn restore_tag(room: &mut [u8], tag: [u8; TAG_LEN]) {
    if room.len() >= TAG_LEN + ADDRESSES_LEN {
        room.copy_within(TAG_LEN..TAG_LEN + ADDRESSES_LEN, 0);
        room[ADDRESSES_LEN..ADDRESSES_LEN + TAG_LEN].copy_from_slice(&tag);
    }
}

/// Opens a socket that sends through the interface and receives nothing.
fn open(interface: &Interface) -> io::Result<Socket> {
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))?;
    socket.set_send_buffer_size(BUFFER_LEN)?;
    socket.bind(&sys::address(interface.index, 0)?)?;
    Ok(socket)
}

fn explain(cause: &io::Error) -> Error {
    match cause.raw_os_error() {
        // clause: RAW-RIGHTS
        Some(errno @ (libc::EPERM | libc::EACCES)) => {
            Error::new(errno, "raw packets need the capability CAP_NET_RAW: run the program as root")
        }
        _ => Error::os("cannot open a packet socket", cause),
    }
}

/// Returns the filter of received frames: incoming ones, and outgoing ones for a group or for the
/// interface itself.
// clause: RAW-LOOPBACK
fn filter(interface: &Interface) -> Vec<sock_filter> {
    const PACKET_OUTGOING: u32 = 4;
    let kind_of_packet = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned();
    let [a, b, c, d, e, f] = interface.mac;
    let mut code = vec![op(LOAD_BYTE, kind_of_packet), jump(JUMP_EQ, PACKET_OUTGOING, 1, 0), PASS];
    if !interface.is_loopback() {
        code.extend([
            op(LOAD_BYTE, 0),
            jump(JUMP_SET, 1, 0, 1),
            PASS,
            op(LOAD_WORD, 0),
            jump(JUMP_EQ, u32::from_be_bytes([a, b, c, d]), 0, 3),
            op(LOAD_HALF, 4),
            jump(JUMP_EQ, u16::from_be_bytes([e, f]).into(), 0, 1),
            PASS,
        ]);
    }
    code.push(DROP);
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_is_inserted_after_addresses() {
        let mut room: Vec<u8> = (0..22).collect();
        restore_tag(&mut room, [0x81, 0, 0xac, 0x0c]);
        let expected: Vec<u8> = (4..16).chain([0x81, 0, 0xac, 0x0c]).chain(16..22).collect();
        assert_eq!(room, expected);
        let mut short = [1; 15];
        restore_tag(&mut short, [9; 4]);
        assert_eq!(short, [1; 15]);
    }
}
