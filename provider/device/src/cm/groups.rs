//! Multicast groups that an `rdma_cm_id` for datagrams has joined, and the attachment of its queue
//! pair to them.

use super::route::Address;
use crate::qp::Qp;
use roxe_base::error::Error;

/// Groups that one `rdma_cm_id` has joined. A group that was joined twice is listed twice.
#[derive(Debug, Default)]
pub(super) struct Groups(Vec<Group>);

#[derive(Debug)]
pub(super) struct Group {
    pub(super) address: Address,
    pub(super) send_only: bool,
    pub(super) is_attached: bool,
}

impl Groups {
    /// Adds a group, and attaches the queue pair to it unless the id only sends to it. The group is
    /// added even if the attachment fails, so that [`Groups::leave`] finds it.
    pub(super) fn join(&mut self, mut group: Group, qp: Option<&Qp>) -> Result<(), Error> {
        let attached = qp.filter(|_| !group.send_only).map(|qp| qp.attach_mcast(group.address.gid()));
        group.is_attached = matches!(attached, Some(Ok(())));
        self.0.push(group);
        attached.unwrap_or(Ok(()))
    }

    /// Attaches a new queue pair to the groups that the id joined before.
    pub(super) fn attach_all(&mut self, qp: &Qp) -> Result<(), Error> {
        for group in self.0.iter_mut().filter(|group| !group.send_only) {
            qp.attach_mcast(group.address.gid())?;
            group.is_attached = true;
        }
        Ok(())
    }

    pub(super) fn detach_all(&mut self, qp: &Qp) {
        for group in &mut self.0 {
            group.detach(qp);
        }
    }

    /// Removes a group. Detaches the queue pair unless the list has another entry of the group.
    /// Returns false if the id has not joined the group.
    pub(super) fn leave(&mut self, address: &Address, qp: Option<&Qp>) -> bool {
        // The port is ignored, because a multicast GID has none.
        let is_group = |group: &Group| group.address.with_port(0) == address.with_port(0);
        let Some(at) = self.0.iter().position(is_group) else { return false };
        let mut group = self.0.remove(at);
        let is_still_attached = self.0.iter().any(|other| other.is_attached && other.address.gid() == address.gid());
        if let Some(qp) = qp.filter(|_| !is_still_attached) {
            group.detach(qp);
        }
        true
    }
}

impl Group {
    fn detach(&mut self, qp: &Qp) {
        if std::mem::take(&mut self.is_attached) {
            // The error is ignored: the program may have detached the queue pair itself.
            let _ = qp.detach_mcast(self.address.gid());
        }
    }
}
