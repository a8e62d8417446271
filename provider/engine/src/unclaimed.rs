//! Connection requests that wait for somebody to listen for their service.
//!
//! Touches nothing.

use crate::run::Run;
use roxe_net::link::RxMeta;
use roxe_transport::time::Instant;

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
