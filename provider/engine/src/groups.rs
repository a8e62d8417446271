//! A multicast group that queue pairs of this process are attached to: its sockets and its members.
//!
//! Touches nothing.

use crate::queue_pair::QueuePair;
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_net::udp::UdpLink;
use roxe_wire::Gid;
use std::sync::Arc;

/// One group that queue pairs of this process are attached to.
#[derive(Debug)]
pub(crate) struct Group {
    /// As programs name it.
    pub(crate) mgid: Gid,
    /// The sockets to receive from.
    pub(crate) links: Vec<Arc<UdpLink>>,
    pub(crate) members: Vec<Arc<dyn QueuePair>>,
}

impl Group {
    pub(crate) fn position(&self, qp: &dyn QueuePair) -> Option<usize> {
        self.members.iter().position(|member| member.qpn() == qp.qpn())
    }

    pub(crate) fn add(&mut self, qp: &Arc<dyn QueuePair>) -> Result<(), Error> {
        if self.position(&**qp).is_some() {
            return Ok(());
        }
        if self.members.len() >= limits::MAX_MCAST_QP_ATTACH as usize {
            return Err(Error::new(libc::ENOMEM, format!("no more queue pairs can be attached to {}", self.mgid)));
        }
        self.members.push(Arc::clone(qp));
        Ok(())
    }
}
