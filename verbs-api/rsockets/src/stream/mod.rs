//! Streams: SOCK_STREAM over a connected queue pair.
//!
//! A [`Stream`] goes through the phases of a connection (`opening.rs`, `listening.rs`);
//! once it is [`open::Open`] it moves bytes (`transfer.rs`); the background thread looks after it
//! (`service.rs`). Everything of a stream is behind one lock that nobody holds while waiting.
//! Besides, one thread at a time sends, and one receives, so that the bytes of a call stay
//! together.

mod cursor;
mod endpoint;
mod iomap;
mod listening;
mod open;
mod opening;
mod options;
mod path;
mod service;
mod settings;
mod transfer;

pub(crate) use cursor::{Drain, Fill};
pub(crate) use transfer::RecvMode;

use crate::errno::{self, os};
use crate::lock;
use crate::proto::stream::Link;
use crate::wait::{self, Source, Waker, Watchers};
use open::Open;
use opening::Opening;
use roxe::cm::{CmId, EventChannel, IdOption, PortSpace};
use roxe_provider::lock::{Mutex, MutexGuard};
use settings::Settings;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

/// A SOCK_STREAM socket.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Events of the connection; its descriptor is the number of the socket.
    channel: EventChannel,
    inner: Mutex<lock::Stream, Inner>,
    send_turn: Mutex<lock::SendTurn, ()>,
    recv_turn: Mutex<lock::RecvTurn, ()>,
}

/// What a lock guards.
#[derive(Debug)]
struct Inner {
    phase: Phase,
    settings: Settings,
    watchers: Watchers,
    /// What SO_ERROR tells once.
    error: i32,
    /// When the peer is asked for a sign of life, if SO_KEEPALIVE is on.
    next_probe: Option<Instant>,
    /// That the connection broke has been noted in `error`.
    broken: bool,
}

/// Where a stream is between `socket` and `close`.
#[derive(Debug)]
enum Phase {
    /// New, or bound.
    Idle(CmId),
    Opening(Box<Opening>),
    Listening(Listening),
    /// Connected, or it was.
    Open(Box<Open>),
    /// It could not be connected.
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

    /// What `poll(2)` would say.
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
        match open.stream.link() {
            Link::Up => ready,
            // Many programs take a hang-up for the end of everything: it waits until they have read
            // all that came before.
            Link::Down if has_data => ready,
            Link::Down => ready | libc::POLLHUP,
            Link::Broken => ready | libc::POLLHUP | libc::POLLERR,
        }
    }
}

/// A listener.
#[derive(Debug)]
struct Listening {
    id: CmId,
    /// Connections that may wait.
    backlog: usize,
    /// Those that nobody has taken.
    accepted: VecDeque<Stream>,
}

impl Listening {
    fn has_room(&self) -> bool {
        self.accepted.len() < self.backlog
    }
}

impl Stream {
    pub(crate) fn new() -> io::Result<Self> {
        let channel = EventChannel::create().map_err(errno::of)?;
        let id = CmId::create(&channel, PortSpace::Tcp).map_err(errno::of)?;
        Ok(Self::in_phase(channel, Phase::Idle(id), Settings::new()))
    }

    fn in_phase(channel: EventChannel, phase: Phase, settings: Settings) -> Self {
        let (watchers, next_probe) = (Watchers::default(), settings.first_probe());
        let inner = Inner { phase, settings, watchers, error: 0, next_probe, broken: false };
        Self { channel, inner: Mutex::new(inner), send_turn: Mutex::default(), recv_turn: Mutex::default() }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.channel.as_raw_fd()
    }

    pub(crate) fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        match &self.inner.lock().phase {
            Phase::Idle(id) => id.bind(addr).map_err(errno::of),
            _ => Err(os(libc::EINVAL)),
        }
    }

    /// Starts to connect; with `wait`, until it is done.
    pub(crate) fn connect(&self, addr: SocketAddr, wait: bool) -> io::Result<()> {
        self.start_to_connect(addr)?;
        if !wait {
            return self.current().connected().unwrap_or_else(|| Err(os(libc::EINPROGRESS)));
        }
        self.wait(None, |inner| inner.connected().is_some())?;
        let mut inner = self.inner.lock();
        let result = inner.connected().unwrap_or(Ok(()));
        inner.error = 0;
        result
    }

    fn start_to_connect(&self, addr: SocketAddr) -> io::Result<()> {
        let mut inner = self.current();
        let id = match &inner.phase {
            Phase::Idle(id) => id.clone(),
            Phase::Failed => CmId::create(&self.channel, PortSpace::Tcp).map_err(errno::of)?,
            Phase::Opening(_) => return Err(os(libc::EALREADY)),
            Phase::Open(_) => return Err(os(libc::EISCONN)),
            Phase::Listening(_) | Phase::Closed => return Err(os(libc::EINVAL)),
        };
        inner.error = 0;
        inner.phase = Phase::Opening(Box::new(Opening::start(id, addr)?));
        Ok(())
    }

    /// Ends directions, and waits until the peer has what was sent before.
    pub(crate) fn shut_down(&self, read: bool, write: bool) -> io::Result<()> {
        self.end_directions(read, write)?;
        if write { self.settle(None) } else { Ok(()) }
    }

    /// Waits until everything sent has arrived, or never will; hangs up if both directions have
    /// ended.
    fn settle(&self, deadline: Option<Instant>) -> io::Result<()> {
        let settled =
            self.wait(deadline, |inner| inner.open().is_none_or(|open| !open.established || open.stream.is_settled()));
        if let Phase::Open(open) = &mut self.inner.lock().phase
            && open.stream.link() != Link::Up
        {
            open.hang_up();
        }
        settled
    }

    /// Ends it: delivers what was sent, as SO_LINGER says, and lets everything go.
    pub(crate) fn close(&self) {
        let linger = self.inner.lock().settings.linger;
        if linger.is_none_or(|linger| !linger.is_zero()) {
            // Nothing connected, or it broke: then there is nothing to wait for.
            let _ = self.end_directions(true, true);
            let deadline = linger.and_then(|linger| Instant::now().checked_add(linger));
            while matches!(self.settle(deadline), Err(e) if e.kind() == io::ErrorKind::Interrupted) {}
        }
        let mut inner = self.inner.lock();
        if let Phase::Open(open) = &inner.phase {
            open.hang_up();
        }
        inner.phase = Phase::Closed;
        inner.watchers.wake();
        drop(inner);
        crate::service::wake();
    }

    /// Ends directions, and tells the peer where it is to know.
    fn end_directions(&self, read: bool, write: bool) -> io::Result<()> {
        let mut inner = self.current();
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

    /// Waits until `done` holds of a stream that has taken in what has happened.
    fn wait(&self, deadline: Option<Instant>, mut done: impl FnMut(&mut Inner) -> bool) -> io::Result<()> {
        wait::until(self, deadline, || done(&mut self.current()))
    }

    /// Locks it, with everything taken in that has happened.
    fn current(&self) -> MutexGuard<'_, lock::Stream, Inner> {
        let mut inner = self.inner.lock();
        inner.progress(&self.channel);
        inner
    }
}

impl Inner {
    /// Takes in what has happened, and wakes those who wait for it.
    fn progress(&mut self, channel: &EventChannel) {
        let watched = !self.watchers.is_empty();
        let changed = match &mut self.phase {
            Phase::Open(open) => open.progress(channel, watched),
            Phase::Opening(_) => self.go_on(channel),
            Phase::Idle(_) | Phase::Listening(_) | Phase::Failed | Phase::Closed => false,
        };
        if changed {
            self.note_break();
            self.watchers.wake();
        }
    }

    /// Goes on connecting.
    fn go_on(&mut self, channel: &EventChannel) -> bool {
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

    fn note_break(&mut self) {
        if let Phase::Open(open) = &self.phase
            && open.stream.link() == Link::Broken
            && !std::mem::replace(&mut self.broken, true)
        {
            self.error = libc::ECONNRESET;
        }
    }

    /// How connecting ended, if it has.
    fn connected(&mut self) -> Option<io::Result<()>> {
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

    /// Tells the id, while it can still be told.
    fn tell_id(&self, option: IdOption) -> io::Result<()> {
        match self.phase.id() {
            Some(id) => id.set_option(option).map_err(errno::of),
            None => Ok(()),
        }
    }
}

impl Source for Stream {
    fn ready(&self, events: i16) -> i16 {
        let mut inner = self.current();
        inner.phase.ready() & (events | libc::POLLERR | libc::POLLHUP | libc::POLLNVAL)
    }

    fn watch(&self, waker: &Waker, fds: &mut Vec<libc::pollfd>) {
        let mut inner = self.inner.lock();
        inner.watchers.add(waker);
        match &mut inner.phase {
            Phase::Open(open) => {
                open.endpoint.completions.arm();
                fds.push(wait::waiting_for(open.endpoint.completions.fd()));
                fds.push(wait::waiting_for(self.fd()));
            }
            Phase::Opening(_) => fds.push(wait::waiting_for(self.fd())),
            // A listener's events are the business of the background thread, which wakes.
            Phase::Idle(_) | Phase::Listening(_) | Phase::Failed | Phase::Closed => {}
        }
    }

    fn unwatch(&self, waker: &Waker) {
        self.inner.lock().watchers.remove(waker);
    }
}
