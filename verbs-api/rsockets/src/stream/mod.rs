//! Streams: SOCK_STREAM over a connected queue pair.
//!
//! A [`Stream`] passes through the phases of a connection. In the phase [`open::Open`] it moves
//! bytes. One lock guards its state, and no thread holds that lock while it waits. One thread at a
//! time sends and one receives, so the bytes of a call stay together.

mod cursor;
mod endpoint;
mod open;
mod options;
mod settings;

use crate::errno::os;
use crate::proto::conn::ConnData;
use crate::proto::stream::ConnState;
use crate::service::ServiceDue;
use crate::wait::{Source, Waker, Watchers};
use crate::{errno, lock, service, wait};
pub(crate) use cursor::{RecvCursor, SendCursor};
use endpoint::Endpoint;
use open::{Open, Opening};
use roxe::cm::{CmEvent, CmId, ConnParam, EventChannel, IdOption, PortSpace};
use roxe::{MemoryRegion, ProtectionDomain};
use roxe_provider::lock::{Mutex, MutexGuard, Rank};
use settings::Settings;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

#[derive(Debug)]
pub(crate) struct Stream {
    /// Channel of connection events. The number of its descriptor identifies the socket.
    channel: EventChannel,
    inner: Mutex<lock::Stream, StreamState>,
    /// Held by the thread that sends.
    send_turn: Mutex<lock::SendTurn, ()>,
    /// Held by the thread that receives.
    recv_turn: Mutex<lock::RecvTurn, ()>,
}

#[derive(Debug)]
struct StreamState {
    phase: Phase,
    settings: Settings,
    watchers: Watchers,
    /// Errno that SO_ERROR or the next call reports once; 0 for none.
    error: i32,
    /// Time of the next keepalive probe; `None` if SO_KEEPALIVE is off.
    next_probe: Option<Instant>,
    /// True if the broken connection was stored in `error` once.
    break_reported: bool,
}

#[derive(Debug)]
enum Phase {
    Idle(CmId),
    Opening(Box<Opening>),
    Listening(Listening),
    /// Connected, or connected in the past.
    Open(Box<Open>),
    Failed,
    Closed,
}

impl Phase {
    const fn id(&self) -> Option<&CmId> {
        match self {
            Self::Idle(id) => Some(id),
            Self::Opening(opening) => Some(&opening.id),
            Self::Listening(listening) => Some(&listening.id),
            Self::Open(open) => Some(&open.id),
            Self::Failed | Self::Closed => None,
        }
    }

    /// Returns the `poll(2)` events that are true.
    fn ready(&mut self) -> i16 {
        match self {
            Self::Idle(_) => libc::POLLOUT | libc::POLLHUP,
            Self::Opening(_) => 0,
            Self::Listening(listening) if listening.accepted.is_empty() => 0,
            Self::Listening(_) => libc::POLLIN,
            Self::Open(open) => Self::open_ready(open),
            Self::Failed => libc::POLLIN | libc::POLLOUT | libc::POLLERR | libc::POLLHUP,
            Self::Closed => libc::POLLNVAL,
        }
    }

    fn open_ready(open: &mut Open) -> i16 {
        let mut ready = 0;
        let has_data = open.stream.incoming.has_data();
        if has_data || open.stream.at_end() {
            ready |= libc::POLLIN;
        }
        if open.stream.at_end() {
            ready |= libc::POLLRDHUP;
        }
        if open.stream.is_shut() || open.can_send() {
            ready |= libc::POLLOUT;
        }
        match open.stream.state() {
            ConnState::Up => ready,
            // Many programs stop reading at POLLHUP, so it is reported after all data was read.
            ConnState::Down if has_data => ready,
            ConnState::Down => ready | libc::POLLHUP,
            ConnState::Broken => ready | libc::POLLHUP | libc::POLLERR,
        }
    }
}

#[derive(Debug)]
struct Listening {
    id: CmId,
    /// Longest `accepted`.
    backlog: usize,
    /// Connections that `accept` has not returned yet.
    accepted: VecDeque<Stream>,
}

impl Listening {
    fn has_room(&self) -> bool {
        self.accepted.len() < self.backlog
    }
}

impl Stream {
    pub(crate) fn new() -> io::Result<Self> {
        let channel = EventChannel::create().map_err(errno::io_error)?;
        let id = CmId::create(&channel, PortSpace::Tcp).map_err(errno::io_error)?;
        Ok(Self::with_phase(channel, Phase::Idle(id), Settings::new()))
    }

    fn with_phase(channel: EventChannel, phase: Phase, settings: Settings) -> Self {
        let (watchers, next_probe) = (Watchers::default(), settings.first_probe());
        let inner = StreamState { phase, settings, watchers, error: 0, next_probe, break_reported: false };
        Self { channel, inner: Mutex::new(inner), send_turn: Mutex::default(), recv_turn: Mutex::default() }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.channel.as_raw_fd()
    }

    pub(crate) fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        match &self.inner.lock().phase {
            Phase::Idle(id) => id.bind(addr).map_err(errno::io_error),
            _ => Err(os(libc::EINVAL)),
        }
    }

    pub(crate) fn connect(&self, addr: SocketAddr, wait: bool) -> io::Result<()> {
        self.start_connecting(addr)?;
        if !wait {
            return self.lock_updated().connect_result().unwrap_or_else(|| Err(os(libc::EINPROGRESS)));
        }
        self.wait_until(None, |inner| inner.connect_result().is_some())?;
        let mut inner = self.inner.lock();
        let result = inner.connect_result().unwrap_or(Ok(()));
        inner.error = 0;
        result
    }

    fn start_connecting(&self, addr: SocketAddr) -> io::Result<()> {
        let mut inner = self.lock_updated();
        let id = match &inner.phase {
            Phase::Idle(id) => id.clone(),
            Phase::Failed => CmId::create(&self.channel, PortSpace::Tcp).map_err(errno::io_error)?,
            Phase::Opening(_) => return Err(os(libc::EALREADY)),
            Phase::Open(_) => return Err(os(libc::EISCONN)),
            Phase::Listening(_) | Phase::Closed => return Err(os(libc::EINVAL)),
        };
        inner.error = 0;
        inner.phase = Phase::Opening(Box::new(Opening::start(id, addr)?));
        Ok(())
    }

    /// Ends receiving, sending or both. If sending ends, waits until the peer has received earlier
    /// data.
    pub(crate) fn shut_down(&self, read: bool, write: bool) -> io::Result<()> {
        self.end_directions(read, write)?;
        if write { self.wait_settled(None) } else { Ok(()) }
    }

    /// Waits until the peer has received all data, or the connection has ended. Disconnects if it
    /// has ended.
    fn wait_settled(&self, deadline: Option<Instant>) -> io::Result<()> {
        let settled = self.wait_until(deadline, |inner| {
            inner.open().is_none_or(|open| !open.established || open.stream.is_settled())
        });
        if let Phase::Open(open) = &mut self.inner.lock().phase
            && open.stream.state() != ConnState::Up
        {
            open.disconnect();
        }
        settled
    }

    /// Closes the stream. First waits until its data is delivered, at most for the time of
    /// SO_LINGER.
    pub(crate) fn close(&self) {
        let linger = self.inner.lock().settings.linger;
        if linger.is_none_or(|linger| !linger.is_zero()) {
            // Fails if the stream is not connected: there is nothing to wait for then.
            let _ = self.end_directions(true, true);
            let deadline = linger.and_then(|linger| Instant::now().checked_add(linger));
            while matches!(self.wait_settled(deadline), Err(e) if e.kind() == io::ErrorKind::Interrupted) {}
        }
        let mut inner = self.inner.lock();
        if let Phase::Open(open) = &inner.phase {
            open.disconnect();
        }
        inner.phase = Phase::Closed;
        inner.watchers.wake();
        drop(inner);
        service::wake();
    }

    fn end_directions(&self, read: bool, write: bool) -> io::Result<()> {
        let mut inner = self.lock_updated();
        let Phase::Open(open) = &mut inner.phase else { return Err(os(libc::ENOTCONN)) };
        open.stream.shut_down(read, write);
        open.post_notices();
        inner.watchers.wake();
        Ok(())
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.inner.lock().phase.id()?.local_addr()
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        let inner = self.inner.lock();
        match &inner.phase {
            Phase::Open(open) => open.id.peer_addr().ok_or_else(|| os(libc::ENOTCONN)),
            _ => Err(os(libc::ENOTCONN)),
        }
    }

    /// Waits until `done` is true of the current state.
    fn wait_until(&self, deadline: Option<Instant>, mut done: impl FnMut(&mut StreamState) -> bool) -> io::Result<()> {
        wait::until(self, deadline, || done(&mut self.lock_updated()))
    }

    /// Processes pending completions and events, and returns the state.
    fn lock_updated(&self) -> MutexGuard<'_, lock::Stream, StreamState> {
        let mut inner = self.inner.lock();
        inner.progress(&self.channel);
        inner
    }
}

impl StreamState {
    /// Processes completions and events; wakes waiting threads if there were any.
    fn progress(&mut self, channel: &EventChannel) {
        let watched = !self.watchers.is_empty();
        let changed = match &mut self.phase {
            Phase::Open(open) => open.progress(channel, watched),
            Phase::Opening(_) => self.progress_opening(channel),
            Phase::Idle(_) | Phase::Listening(_) | Phase::Failed | Phase::Closed => false,
        };
        if !changed {
            return;
        }
        if let Phase::Open(open) = &self.phase
            && open.stream.state() == ConnState::Broken
            && !std::mem::replace(&mut self.break_reported, true)
        {
            self.error = libc::ECONNRESET;
        }
        self.watchers.wake();
    }

    fn progress_opening(&mut self, channel: &EventChannel) -> bool {
        let mut changed = false;
        while let Phase::Opening(opening) = &mut self.phase
            && let Some(event) = channel.try_next()
        {
            changed = true;
            match opening.handle(event, &self.settings) {
                Ok(None) => {}
                Ok(Some(open)) => self.phase = Phase::Open(Box::new(open)),
                Err(error) => {
                    self.error = error.raw_os_error().unwrap_or(libc::EIO);
                    self.phase = Phase::Failed;
                }
            }
        }
        if let Phase::Open(open) = &mut self.phase {
            open.progress(channel, !self.watchers.is_empty());
        }
        changed
    }

    /// Returns the outcome of connecting; `None` while it is unknown.
    fn connect_result(&mut self) -> Option<io::Result<()>> {
        match &self.phase {
            Phase::Opening(_) => None,
            Phase::Open(_) => Some(Ok(())),
            _ => Some(Err(os(match self.error {
                0 => libc::ECONNABORTED,
                error => error,
            }))),
        }
    }

    const fn open(&mut self) -> Option<&mut Open> {
        match &mut self.phase {
            Phase::Open(open) => Some(open),
            _ => None,
        }
    }

    /// Sets an option of the connection id; does nothing if the stream has failed or is closed.
    fn set_id_option(&self, option: IdOption) -> io::Result<()> {
        match self.phase.id() {
            Some(id) => id.set_option(option).map_err(errno::io_error),
            None => Ok(()),
        }
    }
}

impl Source for Stream {
    fn ready(&self, events: i16) -> i16 {
        let mut inner = self.lock_updated();
        inner.phase.ready() & (events | libc::POLLERR | libc::POLLHUP | libc::POLLNVAL)
    }

    fn watch(&self, waker: &Waker, fds: &mut Vec<libc::pollfd>) {
        let mut inner = self.inner.lock();
        inner.watchers.add(waker);
        match &mut inner.phase {
            Phase::Open(open) => {
                open.endpoint.completions.arm();
                fds.push(wait::pollin_entry(open.endpoint.completions.fd()));
                fds.push(wait::pollin_entry(self.fd()));
            }
            Phase::Opening(_) => fds.push(wait::pollin_entry(self.fd())),
            // The background thread processes a listener's events, and wakes the watchers.
            Phase::Idle(_) | Phase::Listening(_) | Phase::Failed | Phase::Closed => {}
        }
    }

    fn unwatch(&self, waker: &Waker) {
        self.inner.lock().watchers.remove(waker);
    }
}

/// Longest backlog, in connections; Linux's default of `net.core.somaxconn`.
const MAX_BACKLOG: usize = 4096;

impl Stream {
    pub(crate) fn listen(&self, backlog: i32) -> io::Result<()> {
        let backlog = usize::try_from(backlog).unwrap_or(0).clamp(1, MAX_BACKLOG);
        let mut inner = self.inner.lock();
        match &mut inner.phase {
            Phase::Idle(id) => {
                // When `accepted` is full, the connection manager queues as many requests again.
                id.listen(backlog as u32).map_err(errno::io_error)?;
                inner.phase = Phase::Listening(Listening { id: id.clone(), backlog, accepted: VecDeque::new() });
            }
            Phase::Listening(listening) => listening.backlog = backlog,
            _ => return Err(os(libc::EINVAL)),
        }
        Ok(())
    }

    /// Returns the next connection; with `wait`, waits for it.
    ///
    /// # Errors
    /// EINVAL if the stream is not listening; EAGAIN if there is no connection, without `wait`.
    pub(crate) fn accept(&self, wait: bool) -> io::Result<Self> {
        wait::retry(self, wait, libc::POLLIN, || {
            let mut inner = self.inner.lock();
            let Phase::Listening(listening) = &mut inner.phase else { return Err(os(libc::EINVAL)) };
            let was_full = !listening.has_room();
            let next = listening.accepted.pop_front();
            drop(inner);
            if was_full {
                service::wake();
            }
            Ok(next)
        })
    }

    /// Accepts connection requests until the backlog is full.
    fn accept_requests(&self) {
        let mut inner = self.inner.lock();
        let StreamState { phase: Phase::Listening(listening), settings, watchers, .. } = &mut *inner else { return };
        while listening.has_room()
            && let Some(mut event) = self.channel.try_next()
        {
            if let Some(id) = event.take_request()
                // On a failure the id is dropped, which rejects the request.
                && let Ok(accepted) = accept_request(id, &event, settings)
            {
                listening.accepted.push_back(accepted);
                watchers.wake();
            }
        }
    }
}

fn accept_request(id: CmId, event: &CmEvent, settings: &Settings) -> io::Result<Stream> {
    let peer = ConnData::decode(event.private_data()).map_err(|_| os(libc::EPROTO))?;
    let channel = EventChannel::create().map_err(errno::io_error)?;
    id.migrate(&channel).map_err(errno::io_error)?;
    let endpoint = Endpoint::build(&id, settings.sizes(), settings.inline)?;
    let terms = event.param().cloned().unwrap_or_default();
    let private_data = endpoint.conn_data().encode().to_vec();
    id.accept(&ConnParam { private_data, ..terms }).map_err(errno::io_error)?;
    let open = Box::new(Open::new(id, endpoint, peer, settings.inline, false));
    Ok(Stream::with_phase(channel, Phase::Open(open), settings.clone()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecvMode {
    /// True if the call waits for data.
    pub(crate) wait: bool,
    /// True if the data stays in the receive buffer.
    pub(crate) peek: bool,
    /// True if the call returns only when the buffers are full, not on the first data.
    pub(crate) all: bool,
}

impl Stream {
    /// Sends all of `data`; without `wait`, as much as possible now.
    pub(crate) fn send(&self, data: &mut SendCursor<'_>, wait: bool) -> io::Result<usize> {
        self.send_with(data, wait, |open, data| {
            open.send(data);
            true
        })
    }

    pub(crate) fn iowrite(&self, data: &mut SendCursor<'_>, offset: u64, wait: bool) -> io::Result<usize> {
        self.send_with(data, wait, |open, data| {
            let offset = offset.wrapping_add(data.moved() as u64);
            open.write_mapped(data, offset)
        })
    }

    /// Calls `step`, which sends, until `data` is empty or `step` returns false: it cannot send the
    /// rest. Without `wait`, calls it only while it can send.
    fn send_with(
        &self,
        data: &mut SendCursor<'_>,
        wait: bool,
        mut step: impl FnMut(&mut Open, &mut SendCursor<'_>) -> bool,
    ) -> io::Result<usize> {
        let _turn = lock_turn(&self.send_turn, wait)?;
        let done = wait::retry(self, wait, libc::POLLOUT, || Ok(self.send_now(data, &mut step)?.then_some(())));
        moved_or_error(data.moved(), done)
    }

    /// Calls `step`, and once more after processing events. Returns true if the send call is
    /// finished.
    fn send_now(
        &self,
        data: &mut SendCursor<'_>,
        step: &mut impl FnMut(&mut Open, &mut SendCursor<'_>) -> bool,
    ) -> io::Result<bool> {
        let mut inner = self.inner.lock();
        for progressed in [false, true] {
            if progressed {
                inner.progress(&self.channel);
            }
            let Some(open) = inner.open_for_send()? else { continue };
            if (!step(open, data) && progressed) || data.is_done() {
                return Ok(true);
            }
        }
        // Returns the error if `step` has found the connection broken.
        inner.open_for_send().map(|_| false)
    }

    pub(crate) fn recv(&self, room: &mut RecvCursor<'_, '_>, mode: RecvMode) -> io::Result<usize> {
        let _turn = lock_turn(&self.recv_turn, mode.wait)?;
        if room.is_done() {
            return Ok(0);
        }
        let done = wait::retry(self, mode.wait, libc::POLLIN, || Ok(self.recv_now(room, mode)?.then_some(())));
        moved_or_error(room.moved(), done)
    }

    /// Receives; if that does not finish the receive call, processes events and receives again.
    /// Returns true if the call is finished.
    fn recv_now(&self, room: &mut RecvCursor<'_, '_>, mode: RecvMode) -> io::Result<bool> {
        let mut inner = self.inner.lock();
        for progressed in [false, true] {
            if progressed {
                inner.progress(&self.channel);
            }
            let Some(open) = inner.open_for_recv()? else { continue };
            open.recv(room, mode.peek);
            if room.is_done() || room.moved() > 0 && (!mode.all || mode.peek) {
                return Ok(true);
            }
        }
        match &inner.phase {
            // The first call on a broken connection fails with ECONNRESET; later ones return 0.
            Phase::Open(open) if open.stream.at_end() => match std::mem::take(&mut inner.error) {
                0 => Ok(true),
                error => Err(os(error)),
            },
            _ => Ok(false),
        }
    }

    pub(crate) fn protection_domain(&self) -> io::Result<ProtectionDomain> {
        match &self.lock_updated().phase {
            Phase::Open(open) => Ok(open.endpoint.pd.clone()),
            _ => Err(os(libc::EINVAL)),
        }
    }

    pub(crate) fn iomap(&self, region: MemoryRegion, shared: bool, offset: i64) -> io::Result<i64> {
        let mut inner = self.lock_updated();
        let open = inner.open().ok_or_else(|| os(libc::EINVAL))?;
        let room = open.stream.mappable_count();
        open.maps.add(region, shared, offset, room)
    }

    pub(crate) fn iounmap(&self, addr: usize, len: usize) -> io::Result<()> {
        let mut inner = self.lock_updated();
        inner.open().ok_or_else(|| os(libc::EINVAL))?.maps.remove(addr, len)
    }
}

/// Returns the result of a call that moved `count` bytes: the error only if it moved none.
fn moved_or_error(count: usize, done: io::Result<()>) -> io::Result<usize> {
    if count == 0 { done.map(|()| 0) } else { Ok(count) }
}

/// Locks a direction. Fails with EAGAIN if another thread has locked it, without `wait`.
fn lock_turn<R: Rank>(turns: &Mutex<R, ()>, wait: bool) -> io::Result<MutexGuard<'_, R, ()>> {
    if wait { Ok(turns.lock()) } else { turns.try_lock().ok_or_else(|| os(libc::EAGAIN)) }
}

impl StreamState {
    /// Returns the connection to send on; `None` while it is not established.
    ///
    /// # Errors
    /// ENOTCONN, EPIPE after the program's shutdown, ECONNRESET after the peer's disconnect, EBADF
    /// after `close`, or the stored error.
    fn open_for_send(&mut self) -> io::Result<Option<&mut Open>> {
        let error = std::mem::take(&mut self.error);
        match &mut self.phase {
            Phase::Opening(_) => Ok(None),
            Phase::Open(open) if open.stream.shut_by_program() => Err(os(libc::EPIPE)),
            Phase::Open(open) if open.stream.is_shut() => Err(os(libc::ECONNRESET)),
            Phase::Open(open) => Ok(open.established.then_some(open)),
            Phase::Closed => Err(os(libc::EBADF)),
            _ if error != 0 => Err(os(error)),
            _ => Err(os(libc::ENOTCONN)),
        }
    }

    /// Returns the connection to receive on; `None` while the stream is connecting.
    ///
    /// # Errors
    /// ENOTCONN, EBADF after `close`, or the stored error.
    fn open_for_recv(&mut self) -> io::Result<Option<&mut Open>> {
        match &mut self.phase {
            Phase::Opening(_) => Ok(None),
            Phase::Open(open) => Ok(Some(open)),
            Phase::Closed => Err(os(libc::EBADF)),
            _ if self.error != 0 => Err(os(std::mem::take(&mut self.error))),
            _ => Err(os(libc::ENOTCONN)),
        }
    }
}

impl Stream {
    /// Returns the descriptor and the time that the background thread waits for; `None` if the
    /// stream does not need it.
    pub(crate) fn service_due(&self) -> Option<ServiceDue> {
        let inner = self.inner.lock();
        match &inner.phase {
            Phase::Closed => None,
            Phase::Listening(listening) => Some((listening.has_room().then(|| self.fd()), inner.next_probe)),
            _ => inner.next_probe.map(|due| (None, Some(due))),
        }
    }

    /// Accepts connections, and sends a keepalive probe that is due.
    pub(crate) fn serve(&self, now: Instant) {
        self.accept_requests();
        let mut inner = self.inner.lock();
        if inner.next_probe.is_some_and(|due| due <= now) {
            inner.next_probe = now.checked_add(inner.settings.keep_idle);
            if let Phase::Open(open) = &mut inner.phase {
                open.stream.keep_alive();
            }
            inner.progress(&self.channel);
        }
    }
}
