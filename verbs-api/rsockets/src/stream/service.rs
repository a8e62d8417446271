//! What the background thread does for a stream: takes the requests of a listener, asks silent
//! peers for a sign of life.

use super::{Phase, Stream};
use std::os::fd::RawFd;
use std::time::Instant;

impl Stream {
    /// Whether the background thread has to look after it.
    pub(crate) fn needs_service(&self) -> bool {
        let inner = self.inner.lock();
        match &inner.phase {
            Phase::Closed => false,
            Phase::Listening(_) => true,
            _ => inner.next_probe.is_some(),
        }
    }

    /// On what and until when the background thread sleeps for it.
    pub(crate) fn wants_service(&self) -> (Option<RawFd>, Option<Instant>) {
        let inner = self.inner.lock();
        let takes_requests = matches!(&inner.phase, Phase::Listening(listening) if listening.has_room());
        (takes_requests.then(|| self.fd()), inner.next_probe)
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
