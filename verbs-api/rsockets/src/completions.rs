//! A completion queue that requests an event only while a thread sleeps, because each event costs a
//! system call.

use roxe::{CompletionChannel, CompletionQueue, Context, Error};
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// Completions per poll.
pub(crate) const BATCH: usize = 16;

#[derive(Debug)]
pub(crate) struct Completions {
    pub(crate) cq: CompletionQueue,
    channel: CompletionChannel,
    /// True if the next completion raises an event.
    armed: bool,
}

impl Completions {
    pub(crate) fn create(context: &Context, entries: u32) -> Result<Self, Error> {
        let channel = context.create_comp_channel()?;
        Ok(Self { cq: context.create_cq_with_channel(entries, &channel)?, channel, armed: false })
    }

    /// Returns a descriptor that becomes readable on the first completion after [`arm`](Self::arm).
    pub(crate) fn fd(&self) -> RawFd {
        self.channel.as_fd().as_raw_fd()
    }

    /// Requests an event for the next completion. Completions that are already queued raise none,
    /// so the caller polls again before it sleeps.
    pub(crate) fn arm(&mut self) {
        if !std::mem::replace(&mut self.armed, true) {
            self.cq.req_notify(false);
        }
    }

    /// Consumes pending events. If `watched`, a thread sleeps or is about to, and may wait for a
    /// later completion: requests another event.
    pub(crate) fn take_events(&mut self, watched: bool) {
        if !self.armed {
            return;
        }
        while self.channel.try_get_event().is_some() {
            self.armed = false;
        }
        if watched {
            self.arm();
        }
    }
}
