//! The null region (`ibv_alloc_null_mr`): a key for lists behind which there is no memory.
//!
//! A program names it where a list must have bytes that it does not care about. Touches the table
//! of regions only.

use super::registration::{Backing, Mr, Terms};
use crate::pd::Pd;
use roxe_base::error::Error;
use roxe_memory::region::{Region, Users};
use roxe_transport::wr::Access;
use std::sync::Arc;

impl Pd {
    /// A region of any addresses that reads as zeros and forgets what is written. No peer can use
    /// its key. ENOMEM: too many regions and windows.
    pub fn alloc_null_mr(self: &Arc<Self>) -> Result<Arc<Mr>, Error> {
        let terms = Terms { addr: 0, length: u64::MAX, iova: 0, access: Access::LOCAL_WRITE };
        let region = Region { users: Users::Null(self.id()), ..terms.region(self, 0) };
        Mr::enter(self, terms, region, Backing::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mr::MrChange;
    use crate::testing;
    use roxe_memory::guard::own_cells;
    use roxe_memory::region::{MwKind, Reach};
    use roxe_transport::cx::{AtomicOp, MemError};
    use roxe_transport::wr::{Bind, Sge};

    /// `length` bytes at `addr` of the region.
    fn part(mr: &Mr, addr: u64, length: u32) -> [Sge; 1] {
        [Sge { addr, length, lkey: mr.lkey() }]
    }

    // clause: KEY-NULL
    #[test]
    fn lists_read_zeros_and_write_nothing() {
        let pd = testing::pd();
        let (mr, table) = (pd.alloc_null_mr().unwrap(), pd.context().memory());
        for addr in [0, 4096, 1 << 47, u64::MAX - 8] {
            let mut out = [7; 8];
            assert_eq!(table.hold().scatter(pd.id(), &part(&mr, addr, 8), 0, &[1; 8]), Ok(()));
            assert_eq!(
                (table.hold().gather(pd.id(), &part(&mr, addr, 8), 0, own_cells(&mut out)), out),
                (Ok(()), [0; 8])
            );
        }
        let stranger = pd.context().alloc_pd().unwrap();
        let list = part(&mr, 0, 8);
        assert_eq!(table.hold().gather(stranger.id(), &list, 0, own_cells(&mut [0; 8])), Err(MemError::WrongDomain));
        assert_eq!(table.hold().scatter(stranger.id(), &list, 0, &[0; 8]), Err(MemError::WrongDomain));
        mr.deregister().unwrap();
        assert_eq!(table.hold().gather(pd.id(), &list, 0, own_cells(&mut [0; 8])), Err(MemError::BadKey));
        assert!(pd.dealloc().is_ok());
    }

    // clause: KEY-NULL
    #[test]
    fn peers_windows_and_new_terms_are_refused() {
        let pd = testing::pd();
        let (mr, table) = (pd.alloc_null_mr().unwrap(), pd.context().memory());
        let refused = Err(MemError::WrongDomain);
        assert_eq!(table.hold().read_remote(pd.id(), mr.rkey(), 0, own_cells(&mut [0; 8])), refused);
        assert_eq!(table.hold().write_remote(pd.id(), mr.rkey(), 0, &[0; 8]), refused);
        assert_eq!(table.hold().atomic_remote(pd.id(), mr.rkey(), 0, AtomicOp::FetchAdd { add: 1 }).map(drop), refused);
        let mw = pd.alloc_mw(MwKind::One).unwrap();
        let bind = Bind { rkey: mw.rkey(), lkey: mr.lkey(), access: Access::REMOTE_READ, addr: 0, length: 8 };
        assert_eq!(table.bind(Reach::from(pd.id()), &bind), refused);
        let anew = MrChange { access: Some(Access::empty()), ..MrChange::default() };
        assert_eq!(mr.change(anew).unwrap_err().errno(), libc::EINVAL);
    }
}
