//! Connection requests: those that wait for somebody to listen for their service, and which process
//! others were sent on to.
//!
//! A REJ for timeout names no id of ours, only the sender's own (IBA 12.6.7.2): it has to go where
//! the request went. Touches nothing.

use crate::run::Run;
use roxe_net::link::RxMeta;
use roxe_net::service::Mailbox;
use roxe_transport::cm::Route;
use roxe_transport::time::Instant;
use roxe_wire::cm::CommId;
use std::collections::VecDeque;

/// A packet with a request that nobody listens for.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) meta: RxMeta,
    pub(crate) bytes: Box<[u8]>,
    pub(crate) since: Instant,
    /// When it is looked after next.
    pub(crate) next: Instant,
}

impl Request {
    pub(crate) fn run(&self) -> Run<'_> {
        Run { meta: &self.meta, bytes: &self.bytes, index: self.meta.first_index }
    }
}

/// Requests that are remembered; the oldest are forgotten first. A sender that gives up does so
/// within a minute.
const MAX_REQUESTS: usize = 256;

/// The last requests, by their route and the sender's id of the connection.
#[derive(Debug, Default)]
pub(crate) struct ForwardedRequests(VecDeque<(Route, CommId, Mailbox)>);

impl ForwardedRequests {
    /// The request of `id` along `route` went `to`; one that is repeated takes its place again.
    pub(crate) fn remember(&mut self, route: Route, id: CommId, to: Mailbox) {
        self.0.retain(|(known, number, _)| (*known, *number) != (route, id));
        self.0.truncate(MAX_REQUESTS - 1);
        self.0.push_front((route, id, to));
    }

    /// Where the request of `id` along `route` went.
    pub(crate) fn find(&self, route: Route, id: CommId) -> Option<Mailbox> {
        self.0.iter().find(|(known, number, _)| (*known, *number) == (route, id)).map(|(.., to)| *to)
    }
}
