//! XRC domains: which shared receive queues the targets of a process may take receives from.
//!
//! Openings of the same file (by device and inode) on the same card share a domain: within a process the objects in it, and
//! between processes of one user and one interface the queues: a message that comes to a target here may name a queue of
//! another process that opened the file. The receives of a queue are memory of the process that posted them, so that process
//! executes it ([`crate::host`]). The numbers of queues begin with a slot of their process, as those of queue pairs do, and
//! so tell where they are. `O_CREAT` and `O_EXCL` are about the domain of this process: there is nobody who would know of
//! all processes.
//!
//! One lock per domain; it is taken under the lock of a queue pair. Touches queues and queue pairs through weak references.

use crate::cq::{Cq, CqInit};
use crate::device::Context;
use crate::pd::Pd;
use crate::qp::{Part, Qp, QpCore, QpInit};
use crate::srq::{Srq, SrqInit};
use roxe_base::error::Error;
use roxe_base::limits::{MAX_SRQ_SGE, MAX_XRC_SRQ};
use roxe_base::lock::{Mutex, RwLock, rank};
use roxe_base::uses::{Use, UseCount};
use roxe_net::slot::Slot;
use roxe_transport::qp::{QpCaps, QpConfig, Service};
use roxe_wire::{PathMtu, Qpn};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// Domains that a file names.
static NAMED: Mutex<rank::XrcNames, Vec<Weak<Domain>>> = Mutex::new(Vec::new());

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

/// A card and a file on it: device and inode.
type Name = (u32, u64, u64);

/// What all openings share.
#[derive(Debug, Default)]
struct Domain {
    name: Option<Name>,
    queues: RwLock<rank::XrcQueues, HashMap<u32, Weak<Srq>>>,
    targets: Mutex<rank::XrcTargets, HashMap<u32, Weak<Qp>>>,
}

impl Domain {
    /// The domain that `init` asks for.
    fn get(context: &Context, init: XrcdInit<'_>) -> Result<Arc<Self>, Error> {
        let Some(file) = init.file else {
            return if init.create { Ok(Arc::default()) } else { Err(no_name()) };
        };
        let name = name_of(context, file)?;
        let mut named = NAMED.lock();
        named.retain(|domain| domain.strong_count() > 0);
        match named.iter().filter_map(Weak::upgrade).find(|domain| domain.name == Some(name)) {
            Some(_) if init.exclusive => Err(Error::invalid("the file names an XRC domain already")),
            Some(domain) => Ok(domain),
            None if init.create => {
                let domain = Arc::new(Self { name: Some(name), ..Self::default() });
                named.push(Arc::downgrade(&domain));
                Ok(domain)
            }
            None => Err(Error::new(libc::EAGAIN, "the file names no XRC domain of this process; pass O_CREAT")),
        }
    }
}

/// The queue `number` of the domain that the file with this device and inode names on the card `card`.
pub(crate) fn find_shared(card: u32, file: (u64, u64), number: u32) -> Option<Arc<Srq>> {
    let name = Some((card, file.0, file.1));
    let domain = NAMED.lock().iter().filter_map(Weak::upgrade).find(|domain| domain.name == name)?;
    domain.queues.read().get(&number)?.upgrade()
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
    context: Arc<Context>,
    domain: Arc<Domain>,
    /// What targets have instead of a protection domain and queues of their own: nothing is ever in them.
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    uses: UseCount,
}

impl Xrcd {
    pub(crate) fn open(context: &Arc<Context>, init: XrcdInit<'_>) -> Result<Arc<Self>, Error> {
        let domain = Domain::get(context, init)?;
        let cq = Cq::create(Arc::clone(context), CqInit { cqe: 1, ..CqInit::default() })?;
        let pd = Pd::create(Arc::clone(context))?;
        Ok(Arc::new(Self { context: Arc::clone(context), domain, pd, cq, uses: UseCount::default() }))
    }

    /// The context it was opened in.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// A new shared receive queue of the domain, whose receives complete in `cq`. EINVAL: beyond the limits of the device, or
    /// objects of several contexts. ENOMEM: the domain has [`MAX_XRC_SRQ`]. The first one opens
    /// the sockets of the engine: EADDRINUSE if another user has the port.
    pub fn create_srq(self: &Arc<Self>, pd: &Arc<Pd>, cq: &Arc<Cq>, init: SrqInit) -> Result<Arc<Srq>, Error> {
        if !Arc::ptr_eq(pd.context(), &self.context) || !Arc::ptr_eq(cq.context(), &self.context) {
            return Err(Error::invalid("the XRC domain belongs to another context than the other objects"));
        }
        let slot = self.context.engine().slot()?;
        let mut queues = self.domain.queues.write();
        let srq = Srq::create_xrc(pd, init, (self, cq), free_number(&queues, slot)?)?;
        if let Some(number) = srq.number() {
            queues.insert(number, Arc::downgrade(&srq));
        }
        Ok(srq)
    }

    /// Device and inode of the file that names the domain.
    pub(crate) fn file(&self) -> Option<(u64, u64)> {
        self.domain.name.map(|(_, device, inode)| (device, inode))
    }

    /// The process that may have the queue `number` of this domain, if it is another one.
    pub(crate) fn elsewhere(&self, number: u32) -> Option<Slot> {
        let (qpn, _) = (Qpn::new(number), self.domain.name?);
        let slot = Slot::of(qpn);
        (slot.can_be_owned() && !self.context.engine().is_ours(qpn)).then_some(slot)
    }

    /// What stands for the target `qpn` of another process.
    pub(crate) fn remote_target(self: &Arc<Self>, qpn: Qpn) -> QpCore {
        let (service, caps) = (Service::XrcTgt, QpCaps::default());
        let config = QpConfig {
            qpn,
            service,
            caps,
            sq_sig_all: false,
            srq_max_sge: Some(MAX_SRQ_SGE),
            tag_matching: false,
            // What the connection may have was checked by the process of the target.
            port_mtu: PathMtu::Mtu4096.bytes(),
            line_rate: None,
        };
        let (send_cq, recv_cq) = (Arc::clone(&self.cq), Arc::clone(&self.cq));
        let init = QpInit { service, caps, sq_sig_all: false, send_cq, recv_cq, srq: None, user: 0 };
        QpCore::remote_target(&self.pd, &init, config, self)
    }

    /// A new target in RESET: it receives for the shared queues of the domain, as messages name them.
    pub fn create_target(self: &Arc<Self>, user: u64) -> Result<Arc<Qp>, Error> {
        let (send_cq, recv_cq) = (Arc::clone(&self.cq), Arc::clone(&self.cq));
        let (service, caps) = (Service::XrcTgt, QpCaps::default());
        let init = QpInit { service, caps, sq_sig_all: false, send_cq, recv_cq, srq: None, user };
        let qp = Qp::create_in(&self.pd, init, Part::Target(Arc::clone(self)))?;
        let mut targets = self.domain.targets.lock();
        targets.retain(|_, target| target.strong_count() > 0);
        targets.insert(qp.qpn().get(), Arc::downgrade(&qp));
        Ok(qp)
    }

    /// The target of the domain with this number. It is gone when its creator has destroyed it and all others dropped it.
    ///
    /// EINVAL: there is none. EOPNOTSUPP: the number belongs to another process, whose targets cannot be opened from here.
    pub fn open_target(&self, qpn: u32) -> Result<Arc<Qp>, Error> {
        if let Some(target) = self.domain.targets.lock().get(&qpn).and_then(Weak::upgrade) {
            return Ok(target);
        }
        if self.context.engine().is_foreign(Qpn::new(qpn)) {
            return Err(Error::new(libc::EOPNOTSUPP, format!("queue pair {qpn:#x} belongs to another process")));
        }
        Err(Error::invalid(format!("the XRC domain has no target {qpn:#x}")))
    }

    /// Whether the opening may be closed: EBUSY while it has shared queues or targets.
    pub fn close(&self) -> Result<(), Error> {
        self.uses.check_unused("XRC domain", "shared receive queues and targets")
    }

    /// The shared queue of the domain with this number.
    pub(crate) fn find_srq(&self, number: u32) -> Option<Arc<Srq>> {
        self.domain.queues.read().get(&number)?.upgrade()
    }

    /// The shared queue is destroyed.
    pub(crate) fn forget_srq(&self, number: u32) {
        self.domain.queues.write().remove(&number);
    }

    /// Registers one object of the opening.
    pub(crate) fn hold(&self) -> Use {
        self.uses.hold()
    }
}

/// A number of `slot` that no queue of the domain has. Numbers go round, so that a late message for a queue that is gone does
/// not reach the next one.
// clause: XRC-QUEUE-KNOWN
fn free_number(queues: &HashMap<u32, Weak<Srq>>, slot: Slot) -> Result<u32, Error> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    (0..MAX_XRC_SRQ)
        .map(|_| slot.qpn(NEXT.fetch_add(1, Ordering::Relaxed)).get())
        .find(|number| !queues.contains_key(number))
        .ok_or_else(|| Error::new(libc::ENOMEM, "the XRC domain has no number left for another shared receive queue"))
}
