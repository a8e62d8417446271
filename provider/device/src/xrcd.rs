//! XRC domains: which shared receive queues the targets of a process may take receives from.
//!
//! Openings of the same file (by device and inode) on the same card share a domain: within a
//! process the objects in it, and between processes of one user and one interface the queues: a
//! message that comes to a target here may name a queue of another process that opened the file.
//! The receives of a queue are memory of the process that posted them, so that process executes it
//! ([`crate::remote_targets`]). `O_CREAT` and `O_EXCL` are about the domain of this process: there
//! is nobody who would know of all processes.
//!
//! Touches queues and queue pairs through weak references.

use crate::context::Context;
use crate::cq::{Cq, CqInit};
use crate::pd::Pd;
use crate::qp::{Part, Qp, QpInit};
use crate::remote_targets::RemoteTargets;
use crate::srq::{Srq, SrqInit};
use crate::xrc_domain::{Name, XrcDomain};
use roxe_base::error::Error;
use roxe_base::lock::{Mutex, rank};
use roxe_base::uses::UseCount;
use roxe_transport::qp::{QpCaps, Service};
use roxe_wire::Qpn;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};

/// Domains that a file names.
static NAMED: Mutex<rank::XrcNames, Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Which XRC domain to open (`man ibv_open_xrcd`).
#[derive(Clone, Copy, Debug, Default)]
pub struct XrcdInit<'a> {
    /// The file that names the domain; without one nobody shares it.
    pub file: Option<BorrowedFd<'a>>,
    /// `O_CREAT`: make the domain if this process has none of that name, else EAGAIN.
    pub create: bool,
    /// `O_EXCL`: EINVAL if this process has one already.
    pub exclusive: bool,
}

/// What all openings of a domain share.
#[derive(Debug, Default)]
struct Shared {
    domain: Arc<XrcDomain>,
    targets: Mutex<rank::XrcTargets, HashMap<u32, Weak<Qp>>>,
}

impl Shared {
    fn new(name: Option<Name>) -> Arc<Self> {
        Arc::new(Self { domain: Arc::new(XrcDomain::new(name)), targets: Mutex::default() })
    }

    /// The domain that `init` asks for.
    fn get(context: &Context, init: XrcdInit<'_>) -> Result<Arc<Self>, Error> {
        let Some(file) = init.file else {
            return if init.create { Ok(Self::new(None)) } else { Err(no_name()) };
        };
        let name = Some(name_of(context, file)?);
        let mut named = NAMED.lock();
        named.retain(|shared| shared.strong_count() > 0);
        match named.iter().filter_map(Weak::upgrade).find(|shared| shared.domain.name() == name) {
            Some(_) if init.exclusive => Err(Error::invalid("the file names an XRC domain already")),
            Some(shared) => Ok(shared),
            None if init.create => {
                let shared = Self::new(name);
                named.push(Arc::downgrade(&shared));
                Ok(shared)
            }
            None => Err(Error::new(libc::EAGAIN, "the file names no XRC domain of this process; pass O_CREAT")),
        }
    }
}

/// The queue `number` of the domain that the file with this device and inode names on the card
/// `card`.
pub(crate) fn find_shared(card: u32, file: (u64, u64), number: u32) -> Option<Arc<Srq>> {
    let name = Some((card, file.0, file.1));
    let shared = NAMED.lock().iter().filter_map(Weak::upgrade).find(|shared| shared.domain.name() == name)?;
    shared.domain.find(number)
}

fn no_name() -> Error {
    Error::invalid("an XRC domain without a file can only be created: pass O_CREAT")
}

fn name_of(context: &Context, file: BorrowedFd<'_>) -> Result<Name, Error> {
    let metadata = file.try_clone_to_owned().and_then(|file| File::from(file).metadata());
    let metadata = metadata.map_err(|e| Error::new(libc::EBADF, format!("cannot look at the file: {e}")))?;
    Ok((context.device().index(), metadata.dev(), metadata.ino()))
}

/// One opening of an XRC domain.
#[derive(Debug)]
pub struct Xrcd {
    shared: Arc<Shared>,
    /// What targets have instead of a protection domain and queues of their own: nothing is ever in
    /// them.
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    uses: UseCount,
}

impl Context {
    /// Opens an XRC domain. See [`XrcdInit`] for who shares it; errors as there.
    pub fn open_xrcd(self: &Arc<Self>, init: XrcdInit<'_>) -> Result<Arc<Xrcd>, Error> {
        let shared = Shared::get(self, init)?;
        let cq = self.create_cq(CqInit { cqe: 1, ..CqInit::default() })?;
        let pd = self.alloc_pd()?;
        Ok(Arc::new(Xrcd { shared, pd, cq, uses: UseCount::default() }))
    }
}

impl Xrcd {
    /// The context it was opened in.
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// A new shared receive queue of the domain, whose receives complete in `cq`. EINVAL: beyond
    /// the limits of the device, or objects of several contexts. ENOMEM: the domain has
    /// [`MAX_XRC_SRQ`](roxe_base::limits::MAX_XRC_SRQ). The first one opens the sockets of the
    /// engine: EADDRINUSE if another user has the port.
    pub fn create_srq(self: &Arc<Self>, pd: &Arc<Pd>, cq: &Arc<Cq>, init: SrqInit) -> Result<Arc<Srq>, Error> {
        if !Arc::ptr_eq(pd.context(), self.context()) || !Arc::ptr_eq(cq.context(), self.context()) {
            return Err(Error::invalid("the XRC domain belongs to another context than the other objects"));
        }
        let slot = self.context().engine().slot()?;
        let domain = &self.shared.domain;
        domain.add(slot, |number| {
            let owner = Arc::new(RemoteTargets::new(&self.pd, &self.cq, domain));
            Srq::create_xrc(pd, init, (owner, self.uses.hold()), cq, number)
        })
    }

    /// A new target in RESET: it receives for the shared queues of the domain, as messages name
    /// them.
    pub fn create_target(self: &Arc<Self>, user: u64) -> Result<Arc<Qp>, Error> {
        let (send_cq, recv_cq) = (Arc::clone(&self.cq), Arc::clone(&self.cq));
        let (service, caps) = (Service::XrcTgt, QpCaps::default());
        let init = QpInit { service, caps, sq_sig_all: false, send_cq, recv_cq, srq: None, user };
        let part = Part::Target(Arc::clone(&self.shared.domain), self.uses.hold());
        let qp = Qp::create_in(&self.pd, init, part)?;
        let mut targets = self.shared.targets.lock();
        targets.retain(|_, target| target.strong_count() > 0);
        targets.insert(qp.qpn().get(), Arc::downgrade(&qp));
        Ok(qp)
    }

    /// The target of the domain with this number. It is gone when its creator has destroyed it and
    /// all others dropped it.
    ///
    /// EINVAL: there is none. EOPNOTSUPP: the number belongs to another process, whose targets
    /// cannot be opened from here.
    pub fn open_target(&self, qpn: u32) -> Result<Arc<Qp>, Error> {
        if let Some(target) = self.shared.targets.lock().get(&qpn).and_then(Weak::upgrade) {
            return Ok(target);
        }
        if self.context().engine().is_foreign(Qpn::new(qpn)) {
            return Err(Error::new(libc::EOPNOTSUPP, format!("queue pair {qpn:#x} belongs to another process")));
        }
        Err(Error::invalid(format!("the XRC domain has no target {qpn:#x}")))
    }

    /// Whether the opening may be closed: EBUSY while it has shared queues or targets.
    pub fn close(&self) -> Result<(), Error> {
        self.uses.check_unused("XRC domain", "shared receive queues and targets")
    }
}
