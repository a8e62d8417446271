//! The raw link: whole Ethernet frames from and to one network interface (`man 7 packet`). Needs
//! CAP_NET_RAW.
//!
//! A [`FrameSender`] only sends: it is bound to no protocol, so the kernel gives it nothing. A
//! [`FrameReceiver`] gets a copy of every frame that comes in; the network stack of the host sees
//! them all the same. What leaves the interface comes back to it if it is for a group or for the
//! interface itself, as on a card with local loopback: only so can queue pairs of one device reach
//! each other. On the loopback interface every frame comes in anyway, so there what leaves is left
//! out.
//!
//! Why not the channels of `pnet_datalink`: they move one frame per system call, and do not show
//! the VLAN tag that the kernel takes out of a frame.

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

/// Receive and send buffer asked for, bytes.
const BUFFER: usize = 8 << 20;
/// Bytes of the area that a receiver reads into, unless a single frame needs more.
const AREA: usize = 128 << 10;
/// Bytes of the two addresses, behind which a VLAN tag goes.
const ADDRESSES: usize = ETH_LEN - 2;

/// The interface that frames go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Interface index (`if_nametoindex`).
    pub index: u32,
    /// All zero on loopback.
    pub mac: [u8; 6],
    /// Bytes of the largest frame, VLAN tag included.
    pub max_frame: usize,
}

impl Interface {
    fn is_loopback(&self) -> bool {
        self.mac == [0; 6]
    }
}

/// Sends frames, and never waits: what finds the send buffer full is queued.
#[derive(Debug)]
pub struct FrameSender {
    socket: Socket,
    queue: Arc<TxQueue>,
}

/// A frame as the queue has it.
const FRAME: Run = Run { to: None, segment: usize::MAX };

impl FrameSender {
    /// EPERM without CAP_NET_RAW, EOPNOTSUPP if the interface does not carry Ethernet frames.
    /// `room` tells when the send buffer has room again.
    pub fn open(interface: &Interface, room: &Arc<SendRoom>) -> Result<Self, Error> {
        let socket = open(interface).map_err(|e| explain(&e))?;
        if !sys::carries_ethernet(&socket).map_err(|e| explain(&e))? {
            return Err(Error::new(libc::EOPNOTSUPP, "the network interface does not carry Ethernet frames"));
        }
        let queue = Arc::new(TxQueue::new(room));
        Ok(Self { socket, queue })
    }

    /// Hands the first few of `frames` to the system and returns how many; an error is about the
    /// first one.
    pub fn send<'a>(&self, frames: impl Iterator<Item = &'a [u8]>) -> Result<usize, SendError> {
        sys::send(self.socket.as_raw_fd(), frames).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => SendError::Full,
            _ => SendError::Lost,
        })
    }

    /// Sends one frame when there is room, behind those that wait.
    pub fn send_later(&self, frame: &[u8]) -> Result<Taken, SendError> {
        self.queue.send(
            FRAME,
            frame,
            |_| self.socket.as_raw_fd(),
            |_, frame| self.send(std::iter::once(frame)).map(drop),
        )
    }

    /// What waits for room in the send buffer.
    pub fn queue(&self) -> &Arc<TxQueue> {
        &self.queue
    }

    /// Sends what waits, as far as there is room, and says of each frame what came of it. The queue
    /// pairs that waited, once nothing is left.
    pub fn send_queued(&self, report: impl FnMut(&Run, usize, Result<(), SendError>)) -> Vec<Qpn> {
        self.queue.drain(|_| self.socket.as_raw_fd(), |_, frame| self.send(std::iter::once(frame)).map(drop), report)
    }
}

/// Frames that the interface has to take in although they are not for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Those for this address.
    Address([u8; 6]),
    /// Those for all groups.
    Groups,
    /// All.
    Everything,
}

/// Receives frames.
#[derive(Debug)]
pub struct FrameReceiver {
    socket: Socket,
    interface: Interface,
    area: Vec<u8>,
    /// Bytes of the area for one frame.
    slot: usize,
    /// Where the frames of the last call are.
    frames: Vec<Range<usize>>,
    /// What was longer than the interface carries: the kernel joins TCP segments where it can, and
    /// shows those as one.
    oversized: u64,
}

impl FrameReceiver {
    /// From now on frames queue up. Errors as [`FrameSender::open`].
    pub fn open(interface: Interface) -> Result<Self, Error> {
        let slot = (TAG_LEN + interface.max_frame).next_multiple_of(64);
        let count = (AREA / slot).clamp(1, sys::MAX_RECV);
        let socket = Self::listen(&interface).map_err(|e| explain(&e))?;
        let (area, frames) = (vec![0; slot * count], Vec::with_capacity(count));
        Ok(Self { socket, interface, area, slot, frames, oversized: 0 })
    }

    fn listen(interface: &Interface) -> io::Result<Socket> {
        // Bound last: nothing may come in before the filter stands.
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))?;
        socket::attach_filter(socket.as_raw_fd(), libc::SO_ATTACH_FILTER, &mut filter(interface))?;
        if socket::set_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER as i32).is_err() {
            // Without CAP_NET_ADMIN the kernel gives what it gives everybody.
            socket.set_recv_buffer_size(BUFFER)?;
        }
        socket::set_option(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
        socket.bind(&sys::address(interface.index, libc::ETH_P_ALL as u16)?)?;
        Ok(socket)
    }

    /// The descriptor, to wait on.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Lets the interface take in more, or no longer; what was wanted twice must be given up twice.
    pub fn set_reach(&self, reach: Reach, wanted: bool) -> io::Result<()> {
        let (kind, mac) = match reach {
            _ if self.interface.is_loopback() => return Ok(()),
            Reach::Address(mac) if mac == self.interface.mac => return Ok(()),
            Reach::Address(mac) if mac[0] & 1 != 0 => (libc::PACKET_MR_MULTICAST, mac),
            Reach::Address(mac) => (libc::PACKET_MR_UNICAST, mac),
            Reach::Groups => (libc::PACKET_MR_ALLMULTI, [0; 6]),
            Reach::Everything => (libc::PACKET_MR_PROMISC, [0; 6]),
        };
        sys::set_membership(self.fd(), self.interface.index, kind as u16, mac, wanted)
    }

    /// Takes what has arrived, up to a batch, without waiting. Whether the batch was full.
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
                put_back(area.get_mut(first..start + len).unwrap_or_default(), tag);
            }
            frames.push(first..start + len);
        })?;
        Ok(count == batch)
    }

    /// The frames that the last [`FrameReceiver::recv`] took.
    pub fn frames(&self) -> impl Iterator<Item = &[u8]> {
        self.frames.iter().filter_map(|place| self.area.get(place.clone()))
    }

    /// How many were left out since the last call because they were longer than the interface
    /// carries.
    pub fn take_oversized(&mut self) -> u64 {
        std::mem::take(&mut self.oversized)
    }
}

/// Puts the VLAN tag back behind the addresses of a frame, which starts [`TAG_LEN`] bytes into
/// `room`.
fn put_back(room: &mut [u8], tag: [u8; TAG_LEN]) {
    if room.len() >= TAG_LEN + ADDRESSES {
        room.copy_within(TAG_LEN..TAG_LEN + ADDRESSES, 0);
        room[ADDRESSES..ADDRESSES + TAG_LEN].copy_from_slice(&tag);
    }
}

/// A socket that sends to the interface and receives nothing.
fn open(interface: &Interface) -> io::Result<Socket> {
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))?;
    socket.set_send_buffer_size(BUFFER)?;
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

/// Which of the frames that pass the interface are kept: those that come in, and those that leave
/// for a group or for the interface itself.
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
    fn a_tag_goes_behind_the_addresses() {
        let mut room: Vec<u8> = (0..22).collect();
        put_back(&mut room, [0x81, 0, 0xac, 0x0c]);
        let expected: Vec<u8> = (4..16).chain([0x81, 0, 0xac, 0x0c]).chain(16..22).collect();
        assert_eq!(room, expected);
        let mut short = [1; 15];
        put_back(&mut short, [9; 4]);
        assert_eq!(short, [1; 15]);
    }
}
