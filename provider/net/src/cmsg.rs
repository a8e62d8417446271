//! Control messages of `sendmsg` and `recvmsg` as plain bytes (`man cmsg`): a writer and an
//! iterator, both without pointers.

use libc::c_int;
use std::mem::size_of;
use std::os::fd::RawFd;
use std::time::{Duration, SystemTime};

/// Size in bytes of the control messages of one call: five small ones.
pub(crate) const CAPACITY: usize = 128;
const MAX_DESCRIPTORS: usize = 4;
const HEADER_LEN: usize = size_of::<libc::cmsghdr>();
const WORD: usize = size_of::<usize>();

/// A buffer for control messages with the alignment of the kernel's headers.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct Control {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl Control {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; CAPACITY], len: 0 }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Returns the whole buffer for the kernel to write into; follow with [`Control::set_len`].
    pub(crate) fn as_mut_buffer(&mut self) -> &mut [u8; CAPACITY] {
        &mut self.bytes
    }

    pub(crate) fn set_len(&mut self, len: usize) {
        self.len = len.min(CAPACITY);
    }

    /// Appends a message. Returns false if there is no room.
    pub(crate) fn push(&mut self, level: c_int, kind: c_int, data: &[u8]) -> bool {
        let len = HEADER_LEN + data.len();
        let Some(room) = self.bytes.get_mut(self.len..self.len + len.next_multiple_of(WORD)) else { return false };
        let (header, rest) = room.split_at_mut(HEADER_LEN);
        header[..WORD].copy_from_slice(&len.to_ne_bytes());
        header[HEADER_LEN - 8..HEADER_LEN - 4].copy_from_slice(&level.to_ne_bytes());
        header[HEADER_LEN - 4..].copy_from_slice(&kind.to_ne_bytes());
        rest[..data.len()].copy_from_slice(data);
        self.len += len.next_multiple_of(WORD);
        true
    }

    pub(crate) fn push_descriptors(&mut self, fds: &[RawFd]) -> bool {
        let mut data = [0; 4 * MAX_DESCRIPTORS];
        data.chunks_exact_mut(4).zip(fds).for_each(|(out, fd)| out.copy_from_slice(&fd.to_ne_bytes()));
        let data = data.get(..4 * fds.len()).unwrap_or_default();
        !data.is_empty() && self.push(libc::SOL_SOCKET, libc::SCM_RIGHTS, data)
    }

    /// Returns the messages as (level, type, data), up to the first incomplete one.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Message<'_>> {
        let mut rest = self.as_bytes();
        std::iter::from_fn(move || {
            let (message, next) = split_message(rest)?;
            rest = next;
            Some(message)
        })
    }
}

impl Default for Control {
    fn default() -> Self {
        Self::new()
    }
}

type Message<'a> = (c_int, c_int, &'a [u8]);

/// Returns the first message of `bytes` and the bytes after it.
fn split_message(bytes: &[u8]) -> Option<(Message<'_>, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>()?;
    let len = usize::from_ne_bytes(*header.first_chunk()?);
    let level = c_int::from_ne_bytes(*header[HEADER_LEN - 8..].first_chunk()?);
    let kind = c_int::from_ne_bytes(*header.last_chunk()?);
    let data = rest.get(..len.checked_sub(HEADER_LEN)?)?;
    let next = rest.get(data.len().next_multiple_of(WORD)..).unwrap_or_default();
    Some(((level, kind, data), next))
}

/// Returns the `struct timespec` of a message, as time since 1970.
pub(crate) fn time(data: &[u8]) -> Option<SystemTime> {
    let (seconds, rest) = data.split_first_chunk()?;
    let [seconds, nanos] = [*seconds, *rest.first_chunk()?].map(i64::from_ne_bytes).map(u64::try_from);
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds.ok()?) + Duration::from_nanos(nanos.ok()?))
}

/// Returns the `int` of a message; IPv4 TOS is a single byte.
pub(crate) fn int(data: &[u8]) -> c_int {
    match *data {
        [byte] => c_int::from(byte),
        [a, b, c, d, ..] => c_int::from_ne_bytes([a, b, c, d]),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_in_push_order() {
        let mut control = Control::new();
        assert!(control.push(17, 103, &4112u16.to_ne_bytes()));
        assert!(control.push(0, 1, &7i32.to_ne_bytes()));
        let all: Vec<_> = control.iter().map(|(level, kind, data)| (level, kind, data.to_vec())).collect();
        assert_eq!(all, [(17, 103, 4112u16.to_ne_bytes().to_vec()), (0, 1, 7i32.to_ne_bytes().to_vec())]);
    }

    #[test]
    fn full_buffer_refuses_and_keeps_messages() {
        let mut control = Control::new();
        let pushed = (0..20).take_while(|_| control.push(1, 2, &[0; 4])).count();
        assert_eq!(pushed, CAPACITY / (HEADER_LEN + 4).next_multiple_of(WORD));
        assert_eq!(control.iter().count(), pushed);
        assert!(!control.push(1, 2, &[0; CAPACITY]));
    }

    #[test]
    fn invalid_length_ends_iteration() {
        for len in [0, HEADER_LEN - 1, CAPACITY + 1, usize::MAX] {
            let mut control = Control::new();
            control.as_mut_buffer()[..WORD].copy_from_slice(&len.to_ne_bytes());
            control.set_len(CAPACITY);
            assert_eq!(control.iter().count(), 0, "{len}");
        }
    }

    #[test]
    fn int_reads_one_or_four_bytes() {
        assert_eq!(int(&[0x68]), 0x68);
        assert_eq!(int(&0x1234i32.to_ne_bytes()), 0x1234);
        assert_eq!(int(&[]), 0);
    }
}
