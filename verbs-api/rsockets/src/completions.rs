//! A completion queue that requests an event, which has a cost, only while a thread sleeps.

use roxe::{CompletionChannel, CompletionQueue, Context, Error};
use std::os::fd::{AsFd, AsRawFd, RawFd};

pub(crate) const BATCH: usize = 16;

#[derive(Debug)]
pub(crate) struct Completions {
    pub(crate) cq: CompletionQueue,
    channel: CompletionChannel,
    /// True if the next completion causes an event.
    armed: bool,
}

impl Completions {
    pub(crate) fn create(context: &Context, entries: u32) -> Result<Self, Error> {
        let channel = context.create_comp_channel()?;
        Ok(Self { cq: context.create_cq_with_channel(entries, &channel)?, channel, armed: false })
    }

    /// Becomes readable on a completion after [`arm`](Self::arm).
    pub(crate) fn fd(&self) -> RawFd {
        self.channel.as_fd().as_raw_fd()
    }

    /// Requests an event for the next completion. Poll again after it for earlier ones.
    pub(crate) fn arm(&mut self) {
        if !std::mem::replace(&mut self.armed, true) {
            self.cq.req_notify(false);
        }
    }

    /// Consumes pending events. If `watched`, a thread sleeps or is about to: requests another
    /// event, because the thread may wait for a later completion.
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
