//! Steps of the far side that not every card has: XRC, memory windows, multicast groups.

use super::state::{Run, SharedQueue, Stop, known};
use crate::script::steps::{Bind, Peer};
use crate::target::Bound;

/// Entries of the completion queue of a shared queue of XRC.
const CQE: u32 = 256;

impl Run<'_> {
    pub(super) fn make_srq(&mut self, name: &str, pd: Option<&String>, xrcd: Option<&String>) -> Result<(), Stop> {
        let pd = self.world.domain(pd)?;
        let queue = match self.world.xrc_domain(xrcd)? {
            None => SharedQueue { srq: self.target.create_srq(pd)?, cq: None },
            Some(xrcd) => {
                let cq = self.target.create_cq(CQE)?;
                let (srq, number) = self.target.create_xrc_srq(pd, xrcd, cq)?;
                self.name(name, "srqn", number.into());
                SharedQueue { srq, cq: Some(cq) }
            }
        };
        self.world.srqs.insert(name.to_owned(), queue);
        Ok(())
    }

    pub(super) fn extend(&mut self, peer: &Peer) -> Result<(), Stop> {
        match peer {
            Peer::Xrcd(name) => {
                let xrcd = self.target.open_xrcd()?;
                self.world.xrc_domains.insert(name.clone(), xrcd);
            }
            Peer::Window { name, kind, pd } => {
                let (kind, pd) = (kind.value(&self.names)?, self.world.domain(pd.as_ref())?);
                let (window, rkey) = self.target.alloc_window(kind as u32, pd)?;
                self.name(name, "rkey", rkey.into());
                self.world.windows.insert(name.clone(), window);
            }
            Peer::Bind(bind) => self.bind(bind)?,
            Peer::Member { qp, group, joins } => {
                self.target.set_member(self.world.tie(Some(qp))?.qp, (*group).into(), *joins)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn bind(&mut self, bind: &Bind) -> Result<(), Stop> {
        let window = known(&self.world.windows, "window", &bind.window)?;
        let (qp, mr) = (self.world.tie(Some(&bind.qp))?.qp, self.world.region(&bind.mr)?.mr);
        let bound = Bound {
            at: bind.at.as_ref().map_or(Ok(0), |at| at.value(&self.names))?,
            length: bind.length.value(&self.names)?,
            access: bind.access,
            wr_id: bind.id.value(&self.names)?,
        };
        let rkey = self.target.bind_window(qp, window, mr, bound)?;
        self.name(&bind.window, "rkey", rkey.into());
        Ok(())
    }
}
