//! Connection requests that wait for somebody to listen for their service.
//!
//! Touches nothing.

use crate::run::Run;
use roxe_net::link::RxMeta;
use roxe_transport::time::Instant;
use std::collections::VecDeque;

/// Requests that nobody listens for, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Unclaimed(pub(crate) VecDeque<Request>);

/// A packet with a request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) meta: RxMeta,
    pub(crate) index: u16,
    pub(crate) bytes: Box<[u8]>,
    pub(crate) since: Instant,
    /// When it is looked after next.
    pub(crate) next: Instant,
}

impl Request {
    pub(crate) fn run(&self) -> Run<'_> {
        Run { meta: &self.meta, bytes: &self.bytes, index: self.index }
    }
}
