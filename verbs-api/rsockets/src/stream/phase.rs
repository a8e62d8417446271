//! Where a stream is between `socket` and `close`.

use super::open::Open;
use super::opening::Opening;
use super::settings::Settings;
use crate::proto::stream::Link;
use roxe::cm::{CmId, EventChannel};
use std::collections::VecDeque;
use std::time::Instant;

#[derive(Debug)]
pub(crate) enum Phase {
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
    pub(crate) const fn id(&self) -> Option<&CmId> {
        match self {
            Self::Idle(id) => Some(id),
            Self::Opening(opening) => Some(opening.id()),
            Self::Listening(listening) => Some(listening.id()),
            Self::Open(open) => Some(open.id()),
            Self::Failed | Self::Closed => None,
        }
    }

    /// What `poll(2)` would say.
    pub(crate) fn ready(&mut self) -> i16 {
        match self {
            Self::Idle(_) => libc::POLLOUT | libc::POLLHUP,
            Self::Opening(_) => 0,
            Self::Listening(listening) => listening.ready(),
            Self::Open(open) => Self::open_ready(open),
            Self::Failed => libc::POLLIN | libc::POLLOUT | libc::POLLERR | libc::POLLHUP,
            Self::Closed => libc::POLLNVAL,
        }
    }

    fn open_ready(open: &mut Open) -> i16 {
        let mut ready = 0;
        let has_data = open.stream.incoming().has_data();
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
pub(crate) struct Listening {
    pub(super) id: CmId,
    /// Connections that may wait.
    pub(super) backlog: usize,
    pub(super) accepted: VecDeque<Accepted>,
}

/// A connection that nobody has taken from the listener: what its stream will be made of.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) channel: EventChannel,
    pub(super) open: Box<Open>,
    pub(super) settings: Settings,
    /// When the peer is to be asked for a sign of life: counted from here on, not from `accept`.
    pub(super) next_probe: Option<Instant>,
}

impl Listening {
    pub(crate) const fn id(&self) -> &CmId {
        &self.id
    }

    pub(crate) fn ready(&self) -> i16 {
        if self.accepted.is_empty() { 0 } else { libc::POLLIN }
    }

    pub(super) fn has_room(&self) -> bool {
        self.accepted.len() < self.backlog
    }
}
