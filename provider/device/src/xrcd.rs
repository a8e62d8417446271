//! XRC domains: the shared receive queues from which XRC targets take receives.
//!
//! Openings of one file (by device and inode) on one card share a domain within this process. In
//! another process the file identifies another domain.

use crate::context::Context;
use crate::cq::{Cq, CqInit};
use crate::pd::Pd;
use crate::qp::{Qp, QpInit, QpRole};
use crate::srq::{Srq, SrqInit, XrcQueues};
use roxe_base::error::Error;
use roxe_base::lock::{Mutex, rank};
use roxe_base::uses::UseCount;
use roxe_transport::qp::{QpCaps, Service};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};

/// Index of the card, and device and inode number of the file.
type Name = (u32, u64, u64);

static NAMED_DOMAINS: Mutex<rank::XrcNames, Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Parameters of [`Context::open_xrcd`] (`man ibv_open_xrcd`).
#[derive(Clone, Copy, Debug, Default)]
pub struct XrcdInit<'a> {
    /// File that identifies the domain; a domain without a file is not shared.
    pub file: Option<BorrowedFd<'a>>,
    /// `O_CREAT`: create the domain if this process has none of that name; otherwise EAGAIN.
    pub create: bool,
    /// `O_EXCL`: fails with EINVAL if this process has the domain already.
    pub exclusive: bool,
}

#[derive(Debug, Default)]
struct Shared {
    name: Option<Name>,
    queues: Arc<XrcQueues>,
    targets: Mutex<rank::XrcTargets, HashMap<u32, Weak<Qp>>>,
}

impl Shared {
    fn get(context: &Context, init: XrcdInit<'_>) -> Result<Arc<Self>, Error> {
        let Some(file) = init.file else {
            return if init.create {
                Ok(Arc::default())
            } else {
                Err(Error::invalid("an XRC domain without a file can only be created: pass O_CREAT"))
            };
        };
        let name = Some(name_of(context, file)?);
        let mut named = NAMED_DOMAINS.lock();
        named.retain(|shared| shared.strong_count() > 0);
        match named.iter().filter_map(Weak::upgrade).find(|shared| shared.name == name) {
            Some(_) if init.exclusive => {
                Err(Error::invalid("the file already has an XRC domain, and O_EXCL was passed"))
            }
            Some(shared) => Ok(shared),
            None if init.create => {
                let shared = Arc::new(Self { name, ..Self::default() });
                named.push(Arc::downgrade(&shared));
                Ok(shared)
            }
            None => Err(Error::new(libc::EAGAIN, "the file has no XRC domain in this process; pass O_CREAT")),
        }
    }
}

fn name_of(context: &Context, file: BorrowedFd<'_>) -> Result<Name, Error> {
    let metadata = file.try_clone_to_owned().and_then(|file| File::from(file).metadata());
    let metadata =
        metadata.map_err(|e| Error::new(libc::EBADF, format!("cannot read the metadata of the file: {e}")))?;
    Ok((context.device().index(), metadata.dev(), metadata.ino()))
}

/// One opening of an XRC domain.
#[derive(Debug)]
pub struct Xrcd {
    shared: Arc<Shared>,
    /// Stand-ins for the protection domain and queues that a target lacks; always empty.
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    uses: UseCount,
}

impl Context {
    /// Opens an XRC domain. Errors as described at [`XrcdInit`].
    pub fn open_xrcd(self: &Arc<Self>, init: XrcdInit<'_>) -> Result<Arc<Xrcd>, Error> {
        let shared = Shared::get(self, init)?;
        let cq = self.create_cq(CqInit { cqe: 1, ..CqInit::default() })?;
        let pd = self.alloc_pd()?;
        Ok(Arc::new(Xrcd { shared, pd, cq, uses: UseCount::default() }))
    }
}

impl Xrcd {
    /// Returns the context of the opening.
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// Creates a shared receive queue of the domain, whose receives complete in `cq`. The first one
    /// opens the sockets of the engine. Fails with EINVAL beyond the limits of the device, or for
    /// objects of several contexts; ENOMEM beyond [`MAX_XRC_SRQ`](roxe_base::limits::MAX_XRC_SRQ)
    /// queues of the domain; EADDRINUSE if another user has the UDP port.
    pub fn create_srq(self: &Arc<Self>, pd: &Arc<Pd>, cq: &Arc<Cq>, init: SrqInit) -> Result<Arc<Srq>, Error> {
        if !Arc::ptr_eq(pd.context(), self.context()) || !Arc::ptr_eq(cq.context(), self.context()) {
            return Err(Error::invalid("the XRC domain belongs to another context than the other objects"));
        }
        let slot = self.context().engine().slot()?;
        self.shared.queues.create(pd, init, cq, (slot, self.uses.hold()))
    }

    /// Creates a target in RESET. Each message selects an SRQ of the domain.
    pub fn create_target(self: &Arc<Self>, user_context: u64) -> Result<Arc<Qp>, Error> {
        let (send_cq, recv_cq) = (Arc::clone(&self.cq), Arc::clone(&self.cq));
        let (service, caps) = (Service::XrcTgt, QpCaps::default());
        let init = QpInit { service, caps, sq_sig_all: false, send_cq, recv_cq, srq: None, user_context };
        let role = QpRole::Target(Arc::clone(&self.shared.queues), self.uses.hold());
        let qp = Qp::create_in(&self.pd, init, role)?;
        let mut targets = self.shared.targets.lock();
        targets.retain(|_, target| target.strong_count() > 0);
        targets.insert(qp.qpn().get(), Arc::downgrade(&qp));
        Ok(qp)
    }

    /// Returns the target with this number, which lives until its creator has destroyed it and all
    /// others have dropped it. Fails with EINVAL if this process has no such target in the domain.
    pub fn open_target(&self, qpn: u32) -> Result<Arc<Qp>, Error> {
        self.shared
            .targets
            .lock()
            .get(&qpn)
            .and_then(Weak::upgrade)
            .ok_or_else(|| Error::invalid(format!("this process has no target {qpn:#x} in the XRC domain")))
    }

    /// Checks that the opening may be closed. Fails with EBUSY while it has SRQs or targets.
    pub fn close(&self) -> Result<(), Error> {
        self.uses.check_unused("XRC domain", "shared receive queues and targets")
    }
}
