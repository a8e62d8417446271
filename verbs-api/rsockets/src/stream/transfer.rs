//! Moving bytes: the calls that send and receive, and those that write into mapped memory.

use super::open::Open;
use super::{Drain, Fill, Inner, Phase, Stream};
use crate::errno::os;
use crate::wait;
use roxe::{MemoryRegion, ProtectionDomain};
use roxe_provider::lock::{Mutex, MutexGuard, Rank};
use std::io;

/// How a call receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecvMode {
    pub(crate) wait: bool,
    pub(crate) peek: bool,
    /// Returns when the room is full, not as soon as something is there.
    pub(crate) all: bool,
}

impl Stream {
    /// Sends all of `data`; what may leave now if not to `wait`.
    pub(crate) fn send(&self, data: &mut Drain<'_>, wait: bool) -> io::Result<usize> {
        self.send_with(data, wait, |open, data| {
            open.send(data);
            true
        })
    }

    /// Writes `data` to what the peer has mapped from `offset` on.
    pub(crate) fn iowrite(&self, data: &mut Drain<'_>, offset: u64, wait: bool) -> io::Result<usize> {
        self.send_with(data, wait, |open, data| {
            let offset = offset.wrapping_add(data.moved() as u64);
            open.write_mapped(data, offset)
        })
    }

    /// Lets `step` take from `data` until it is empty or `step` says that it has taken what it can.
    fn send_with(
        &self,
        data: &mut Drain<'_>,
        wait: bool,
        mut step: impl FnMut(&mut Open, &mut Drain<'_>) -> bool,
    ) -> io::Result<usize> {
        let _turn = turn(&self.send_turn, wait)?;
        let done = wait::retry(self, wait, libc::POLLOUT, || Ok(self.send_now(data, &mut step)?.then_some(())));
        moved(data.moved(), done)
    }

    /// One attempt, and a second one after a look at what has happened. True if the call is done.
    fn send_now(
        &self,
        data: &mut Drain<'_>,
        step: &mut impl FnMut(&mut Open, &mut Drain<'_>) -> bool,
    ) -> io::Result<bool> {
        let mut inner = self.inner.lock();
        for look in [false, true] {
            if look {
                inner.progress(&self.channel);
            }
            let Some(open) = inner.writable()? else { continue };
            if (!step(open, data) && look) || data.is_done() {
                return Ok(true);
            }
        }
        // The connection may have ended on the way.
        inner.writable().map(|_| false)
    }

    /// Receives what is there, or waits for it.
    pub(crate) fn recv(&self, room: &mut Fill<'_, '_>, mode: RecvMode) -> io::Result<usize> {
        let _turn = turn(&self.recv_turn, mode.wait)?;
        if room.is_done() {
            return Ok(0);
        }
        let done = wait::retry(self, mode.wait, libc::POLLIN, || Ok(self.recv_now(room, mode)?.then_some(())));
        moved(room.moved(), done)
    }

    /// One attempt, after a look if nothing is there. True if the call is done.
    fn recv_now(&self, room: &mut Fill<'_, '_>, mode: RecvMode) -> io::Result<bool> {
        let mut inner = self.inner.lock();
        for look in [false, true] {
            if look {
                inner.progress(&self.channel);
            }
            let Some(open) = inner.readable()? else { continue };
            open.recv(room, mode.peek);
            if room.is_done() || room.moved() > 0 && (!mode.all || mode.peek) {
                return Ok(true);
            }
        }
        inner.ended()
    }

    /// The domain of an open connection.
    pub(crate) fn protection_domain(&self) -> io::Result<ProtectionDomain> {
        match &self.current().phase {
            Phase::Open(open) => Ok(open.endpoint.pd.clone()),
            _ => Err(os(libc::EINVAL)),
        }
    }

    pub(crate) fn iomap(&self, region: MemoryRegion, shared: bool, offset: i64) -> io::Result<i64> {
        let mut inner = self.current();
        let open = inner.open().ok_or_else(|| os(libc::EINVAL))?;
        let room = open.stream.mappable();
        open.maps.add(region, shared, offset, room)
    }

    pub(crate) fn iounmap(&self, addr: usize, len: usize) -> io::Result<()> {
        let mut inner = self.current();
        inner.open().ok_or_else(|| os(libc::EINVAL))?.maps.remove(addr, len)
    }
}

/// What a call returns that has moved `count` bytes and ended so: a failure only counts if nothing
/// was moved before.
fn moved(count: usize, done: io::Result<()>) -> io::Result<usize> {
    if count == 0 { done.map(|()| 0) } else { Ok(count) }
}

/// Whose turn it is to send, or to receive.
fn turn<R: Rank>(turns: &Mutex<R, ()>, wait: bool) -> io::Result<MutexGuard<'_, R, ()>> {
    if wait { Ok(turns.lock()) } else { turns.try_lock().ok_or_else(|| os(libc::EAGAIN)) }
}

impl Inner {
    /// The connection to send on; `None` while it is not established.
    ///
    /// # Errors
    /// ENOTCONN, EPIPE if the program has ended its sending, ECONNRESET if the peer has ended
    /// everything.
    fn writable(&mut self) -> io::Result<Option<&mut Open>> {
        let error = std::mem::take(&mut self.error);
        match &mut self.phase {
            Phase::Opening(_) => Ok(None),
            Phase::Open(open) if open.stream.shut_by_us() => Err(os(libc::EPIPE)),
            Phase::Open(open) if open.stream.is_shut() => Err(os(libc::ECONNRESET)),
            Phase::Open(open) => Ok(open.established.then_some(open)),
            Phase::Closed => Err(os(libc::EBADF)),
            _ if error != 0 => Err(os(error)),
            _ => Err(os(libc::ENOTCONN)),
        }
    }

    /// The connection to receive on; `None` while there is none yet.
    fn readable(&mut self) -> io::Result<Option<&mut Open>> {
        match &mut self.phase {
            Phase::Opening(_) => Ok(None),
            Phase::Open(open) => Ok(Some(open)),
            Phase::Closed => Err(os(libc::EBADF)),
            _ if self.error != 0 => Err(os(std::mem::take(&mut self.error))),
            _ => Err(os(libc::ENOTCONN)),
        }
    }

    /// True if nothing more will come.
    ///
    /// # Errors
    /// ECONNRESET, once, if it broke.
    fn ended(&mut self) -> io::Result<bool> {
        match &self.phase {
            Phase::Open(open) if !open.stream.at_end() => Ok(false),
            Phase::Open(_) => match std::mem::take(&mut self.error) {
                0 => Ok(true),
                error => Err(os(error)),
            },
            _ => Ok(false),
        }
    }
}
