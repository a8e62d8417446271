//! What programs and ids do with a [`Channel`]. Touches an eventfd.

use super::id::{Channel, Event};
use crate::event::EventQueue;
use roxe_base::error::Error;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

impl Channel {
    /// A channel without ids. EMFILE: no descriptor is left.
    pub fn create() -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self { events: EventQueue::new()? }))
    }

    /// Readable while events are pending. Stays owned by the channel; may be polled and made
    /// non-blocking.
    pub fn fd(&self) -> RawFd {
        self.events.fd()
    }

    /// The descriptor of [`Channel::fd`], borrowed.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Waits for the next event; EAGAIN if the descriptor is non-blocking and nothing is pending,
    /// EINTR as `read(2)` gives it.
    pub fn next(&self) -> Result<Event, Error> {
        Ok(fetched(self.events.next()?))
    }

    /// The next event for a caller that has slept itself, by reading a unit from the descriptor.
    /// `None`: there is no event any more, go on waiting.
    pub fn take(&self) -> Option<Event> {
        self.events.take_next().map(fetched)
    }

    /// The oldest event, if there is one. Never waits, whatever the mode of the descriptor.
    pub fn try_next(&self) -> Option<Event> {
        self.events.try_next().map(fetched)
    }
}

/// An event that goes to the program: its listener has room for one more request.
fn fetched(event: Event) -> Event {
    if let Some(listener) = &event.listener {
        listener.request_fetched();
    }
    event
}
