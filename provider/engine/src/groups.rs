//! A multicast group: its sockets and attached queue pairs.

use crate::queue_pair::QueuePair;
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_net::udp::UdpLink;
use roxe_wire::Gid;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) mgid: Gid,
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
