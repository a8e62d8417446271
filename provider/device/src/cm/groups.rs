//! The multicast groups of a datagram id, and which of them its queue pair is attached to by the
//! id's doing.

use super::route::Address;
use crate::qp::Qp;
use roxe_base::error::Error;

/// The groups of an id, each as often as it was joined.
#[derive(Debug, Default)]
pub(super) struct Groups(Vec<Group>);

#[derive(Debug)]
pub(super) struct Group {
    pub(super) address: Address,
    pub(super) send_only: bool,
    /// The id's queue pair is, by this.
    pub(super) is_attached: bool,
}

impl Groups {
    /// One more, of which the queue pair becomes a member.
    pub(super) fn attach(&mut self, mut group: Group, qp: Option<&Qp>) -> Result<(), Error> {
        let attached = qp.filter(|_| !group.send_only).map(|qp| qp.attach_mcast(group.address.gid()));
        group.is_attached = matches!(attached, Some(Ok(())));
        self.0.push(group);
        attached.unwrap_or(Ok(()))
    }

    /// The id has a queue pair now: it becomes member of what was joined before.
    pub(super) fn attach_all(&mut self, qp: &Qp) -> Result<(), Error> {
        for group in self.0.iter_mut().filter(|group| !group.send_only) {
            qp.attach_mcast(group.address.gid())?;
            group.is_attached = true;
        }
        Ok(())
    }

    /// The id forgets its queue pair, which leaves what it is in by the id's doing.
    pub(super) fn detach_all(&mut self, qp: &Qp) {
        for group in &mut self.0 {
            group.detach(qp);
        }
    }

    /// Forgets a group. False if there is no such group.
    pub(super) fn leave(&mut self, address: &Address, qp: Option<&Qp>) -> bool {
        // Ports of groups have no meaning.
        let is_meant = |group: &Group| group.address.with_port(0) == address.with_port(0);
        let Some(at) = self.0.iter().position(is_meant) else { return false };
        let mut group = self.0.remove(at);
        let remains = self.0.iter().any(|other| other.is_attached && other.address.gid() == address.gid());
        if let Some(qp) = qp.filter(|_| !remains) {
            group.detach(qp);
        }
        true
    }
}

impl Group {
    fn detach(&mut self, qp: &Qp) {
        if std::mem::take(&mut self.is_attached) {
            // It is no member any more if the program has detached it itself.
            let _ = qp.detach_mcast(self.address.gid());
        }
    }
}
