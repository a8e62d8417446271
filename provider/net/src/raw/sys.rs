//! System calls of packet sockets that no safe crate offers completely. Unsafe code: these system
//! calls.

use crate::cmsg::{CAPACITY, Control};
use crate::sys::{check, set};
use libc::{c_int, socklen_t};
use roxe_wire::frame::TAG_LEN;
use socket2::{SockAddr, Socket};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::RawFd;

/// Maximum number of frames per call in each direction, limited by the stack they need.
pub(super) const MAX_SEND: usize = 16;
pub(super) const MAX_RECV: usize = 16;

/// Returns the address of an interface for frames of `protocol` in host byte order; 0 for none.
pub(super) fn address(ifindex: u32, protocol: u16) -> io::Result<SockAddr> {
    // SAFETY: the closure writes a whole sockaddr_ll, which fits into the storage, and its length.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, len| {
            let link = libc::sockaddr_ll {
                sll_family: libc::AF_PACKET as u16,
                sll_protocol: protocol.to_be(),
                sll_ifindex: ifindex.cast_signed(),
                sll_hatype: 0,
                sll_pkttype: 0,
                sll_halen: 0,
                sll_addr: [0; 8],
            };
            storage.cast::<libc::sockaddr_ll>().write_unaligned(link);
            len.write(size_of::<libc::sockaddr_ll>() as socklen_t);
            Ok(())
        })
    }?;
    Ok(address)
}

/// Returns true if the interface of `socket` carries Ethernet frames, as loopback does.
pub(super) fn carries_ethernet(socket: &Socket) -> io::Result<bool> {
    let address = socket.local_addr()?;
    if (address.len() as usize) < size_of::<libc::sockaddr_ll>() - 8 {
        return Ok(false);
    }
    // SAFETY: the storage behind an address is larger than a sockaddr_ll, whose fields may hold any
    // bits.
    let link = unsafe { address.as_ptr().cast::<libc::sockaddr_ll>().read_unaligned() };
    Ok([libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&link.sll_hatype))
}

/// Adds or drops a reason for the interface to receive frames of other addresses.
pub(super) fn set_membership(fd: RawFd, ifindex: u32, kind: u16, mac: [u8; 6], add: bool) -> io::Result<()> {
    let [a, b, c, d, e, f] = mac;
    let request = libc::packet_mreq {
        mr_ifindex: ifindex.cast_signed(),
        mr_type: kind,
        mr_alen: 6,
        mr_address: [a, b, c, d, e, f, 0, 0],
    };
    let name = if add { libc::PACKET_ADD_MEMBERSHIP } else { libc::PACKET_DROP_MEMBERSHIP };
    set(fd, libc::SOL_PACKET, name, &request)
}

/// Sends the first of `frames`, at most [`MAX_SEND`], without blocking; returns their number.
pub(super) fn send<'a>(fd: RawFd, frames: impl Iterator<Item = &'a [u8]>) -> io::Result<usize> {
    // SAFETY: all-zero is valid for both: no data, no name, no control messages.
    let (mut parts, mut headers): ([libc::iovec; MAX_SEND], [libc::mmsghdr; MAX_SEND]) = unsafe { zeroed() };
    let mut count: libc::c_uint = 0;
    for ((part, header), frame) in parts.iter_mut().zip(&mut headers).zip(frames) {
        *part = libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
        header.msg_hdr.msg_iov = part;
        header.msg_hdr.msg_iovlen = 1;
        count += 1;
    }
    loop {
        // SAFETY: the first `count` headers point to `parts`, which describe frames that outlive
        // the call; sendmmsg reads the frames and writes only into `headers`.
        let rc = unsafe { libc::syscall(libc::SYS_sendmmsg, fd, headers.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
        match check(rc) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Receives frames without blocking, one into each `slot` bytes of `area`, `front` bytes after the
/// start of the slot. Calls `each` with the area, the start of the frame, its true length (which
/// may exceed the room), and the VLAN tag that the kernel has removed.
pub(super) fn recv(
    fd: RawFd,
    area: &mut [u8],
    slot: usize,
    front: usize,
    mut each: impl FnMut(&mut [u8], usize, usize, Option<[u8; TAG_LEN]>),
) -> io::Result<()> {
    // SAFETY: all-zero is valid for both: no data, no name, no control messages.
    let (mut parts, mut headers): ([libc::iovec; MAX_RECV], [libc::mmsghdr; MAX_RECV]) = unsafe { zeroed() };
    let mut controls = [Control::new(); MAX_RECV];
    let mut count: libc::c_uint = 0;
    for (((room, part), header), control) in
        area.chunks_exact_mut(slot).zip(&mut parts).zip(&mut headers).zip(&mut controls)
    {
        let room = room.get_mut(front..).unwrap_or_default();
        *part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        header.msg_hdr.msg_iov = part;
        header.msg_hdr.msg_iovlen = 1;
        header.msg_hdr.msg_control = control.as_mut_buffer().as_mut_ptr().cast();
        header.msg_hdr.msg_controllen = CAPACITY as _;
        count += 1;
    }
    // MSG_TRUNC: the length of the frame, not of the bytes that fitted.
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    let no_timeout = std::ptr::null_mut::<libc::timespec>();
    // SAFETY: the first `count` headers point to `parts` and `controls`, whose buffers outlive the
    // call; there is no timeout.
    let rc = unsafe { libc::syscall(libc::SYS_recvmmsg, fd, headers.as_mut_ptr(), count, flags, no_timeout) };
    let found = match check(rc) {
        Ok(found) => found,
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
        Err(e) => return Err(e),
    };
    for (index, (header, control)) in headers.iter().zip(&mut controls).take(found).enumerate() {
        control.set_len(header.msg_hdr.msg_controllen as _);
        each(area, index * slot + front, header.msg_len as usize, tag_of(control));
    }
    Ok(())
}

/// Returns the VLAN tag that the kernel has removed from a frame (`struct tpacket_auxdata`).
fn tag_of(control: &Control) -> Option<[u8; TAG_LEN]> {
    const TCI_VALID: u32 = 1 << 4;
    const TPID_VALID: u32 = 1 << 6;
    let is_auxdata =
        |&(level, kind, _): &(c_int, c_int, &[u8])| (level, kind) == (libc::SOL_PACKET, libc::PACKET_AUXDATA);
    let (_, _, data) = control.iter().find(is_auxdata)?;
    // Status, two lengths, two offsets, then TCI and TPID.
    let status = u32::from_ne_bytes(*data.first_chunk()?);
    let tci = u16::from_ne_bytes(*data.get(16..)?.first_chunk()?);
    let tpid = u16::from_ne_bytes(*data.get(18..)?.first_chunk()?);
    let tpid = if status & TPID_VALID != 0 { tpid } else { 0x8100 };
    let ([a, b], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
    (status & TCI_VALID != 0).then_some([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_is_read_from_auxdata() {
        let message = |status: u32| {
            let mut control = Control::new();
            let mut data = [0; 20];
            data[..4].copy_from_slice(&status.to_ne_bytes());
            data[16..18].copy_from_slice(&0xac0cu16.to_ne_bytes());
            data[18..].copy_from_slice(&0x88a8u16.to_ne_bytes());
            assert!(control.push(libc::SOL_PACKET, libc::PACKET_AUXDATA, &data));
            tag_of(&control)
        };
        assert_eq!(message(1), None);
        assert_eq!(message(1 << 4), Some([0x81, 0, 0xac, 0x0c]));
        assert_eq!(message(1 << 4 | 1 << 6), Some([0x88, 0xa8, 0xac, 0x0c]));
        assert_eq!(tag_of(&Control::new()), None);
    }
}
