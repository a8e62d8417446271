//! A completion queue that announces what completes to those who sleep, and only to those: asking
//! for an event costs a little each time.

use roxe::{CompletionChannel, CompletionQueue, Context, Error};
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// Completions taken at a time.
pub(crate) const BATCH: usize = 16;

/// The queue with its channel.
#[derive(Debug)]
pub(crate) struct Completions {
    pub(crate) cq: CompletionQueue,
    channel: CompletionChannel,
    /// The channel announces the next completion.
    armed: bool,
}

impl Completions {
    /// Makes both, for so many completions.
    pub(crate) fn create(context: &Context, entries: u32) -> Result<Self, Error> {
        let channel = context.create_comp_channel()?;
        Ok(Self { cq: context.create_cq_with_channel(entries, &channel)?, channel, armed: false })
    }

    /// Readable when something completes, after [`arm`](Self::arm).
    pub(crate) fn fd(&self) -> RawFd {
        self.channel.as_fd().as_raw_fd()
    }

    /// Lets the next completion be announced. What is there already is not: look again after this.
    pub(crate) fn arm(&mut self) {
        if !std::mem::replace(&mut self.armed, true) {
            self.cq.req_notify(false);
        }
    }

    /// Takes the events that have come. With `watched`, somebody sleeps or is about to: then one is
    /// asked for anew, because what was announced may not be what that one waits for.
    pub(crate) fn take_announcements(&mut self, watched: bool) {
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
