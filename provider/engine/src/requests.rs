//! CM requests: those that wait for a listener, and the processes others were forwarded to.
//!
//! A REJ for timeout names no id of ours, only the sender's own (IBA 12.6.7.2), so it follows the
//! route of its request.

use crate::run::Run;
use roxe_net::link::RxMeta;
use roxe_net::service::Mailbox;
use roxe_transport::cm::Route;
use roxe_transport::time::Instant;
use roxe_wire::cm::CommId;
use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) meta: RxMeta,
    pub(crate) bytes: Box<[u8]>,
    pub(crate) since: Instant,
    /// Time of the next check for a listener.
    pub(crate) next: Instant,
}

impl Request {
    pub(crate) fn run(&self) -> Run<'_> {
        Run { meta: &self.meta, bytes: &self.bytes, index: self.meta.first_index }
    }
}

/// Most remembered requests, oldest dropped first. Senders give up within a minute.
const MAX_REQUESTS: usize = 256;

/// The last forwarded requests, by route and the sender's communication id.
#[derive(Debug, Default)]
pub(crate) struct ForwardedRequests(VecDeque<(Route, CommId, Mailbox)>);

impl ForwardedRequests {
    /// Remembers that the request of `id` along `route` was forwarded `to`.
    pub(crate) fn remember(&mut self, route: Route, id: CommId, to: Mailbox) {
        self.0.retain(|(known, number, _)| (*known, *number) != (route, id));
        self.0.truncate(MAX_REQUESTS - 1);
        self.0.push_front((route, id, to));
    }

    pub(crate) fn find(&self, route: Route, id: CommId) -> Option<Mailbox> {
        self.0.iter().find(|(known, number, _)| (*known, *number) == (route, id)).map(|(.., to)| *to)
    }
}
