//! What the background thread does for a stream: takes the requests of a listener, asks silent
//! peers for a sign of life.

use super::{Phase, Stream};
use crate::service::Wish;
use std::time::Instant;

impl Stream {
    /// On what and until when the background thread sleeps for it, if it has to look after it.
    pub(crate) fn wants_service(&self) -> Option<Wish> {
        let inner = self.inner.lock();
        match &inner.phase {
            Phase::Closed => None,
            Phase::Listening(listening) => Some((listening.has_room().then(|| self.fd()), inner.next_probe)),
            _ => inner.next_probe.map(|due| (None, Some(due))),
        }
    }

    /// Looks after it: takes requests, asks a silent peer for a sign of life.
    pub(crate) fn serve(&self, now: Instant) {
        self.take_requests();
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
