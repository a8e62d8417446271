//! Ids as members of multicast groups.

use super::address::Address;
use super::event::{EventData, EventKind};
use super::id::Id;
use super::options::JoinFlags;
use crate::error::Error;

impl Id {
    /// Becomes a member of the group `addr`.
    pub fn join_multicast(&self, _addr: &Address, _flags: JoinFlags, _user: u64) -> Result<(), Error> {
        self.raise(EventKind::MulticastError, -libc::EOPNOTSUPP, EventData::None);
        Ok(())
    }

    /// Ends what [`Id::join_multicast`] began.
    pub fn leave_multicast(&self, _addr: &Address) -> Result<(), Error> {
        Err(Error::invalid("not a member"))
    }
}
