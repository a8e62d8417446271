//! What a queue pair is built from: its settings with their defaults, and the two ways to build it,
//! alone or on one end of a connection.
//!
//! Touches the provider's protection and XRC domains, which make the QP.

use crate::cm::CmId;
use crate::{
    Access, CompletionQueue, Context, Error, Gid, ObjectId, PathMtu, ProtectionDomain, Psn, Qkey, QpAttr, QueuePair,
    Service, SharedReceiveQueue, XrcDomain,
};
use roxe_provider as provider;
use roxe_transport::qp::QpCaps;
use std::sync::Arc;

impl ProtectionDomain {
    /// Starts a queue pair that reports to these completion queues (they may be the same).
    pub fn create_qp<'a>(&'a self, send_cq: &'a CompletionQueue, recv_cq: &'a CompletionQueue) -> QueuePairBuilder<'a> {
        QueuePairBuilder::with_parent(Parent::Pd { pd: self, send_cq, recv_cq }, Service::Rc)
    }
}

impl XrcDomain {
    /// Starts the receiving end of a connection ([`Service::XrcTgt`]). It has no queues of its own,
    /// so the settings of the builder that are about queues mean nothing.
    pub fn create_target(&self) -> QueuePairBuilder<'_> {
        QueuePairBuilder::with_parent(Parent::Xrc(self), Service::XrcTgt)
    }
}

/// What a queue pair will be. Made by [`ProtectionDomain::create_qp`] or
/// [`XrcDomain::create_target`]; every setting has a default that works.
#[derive(Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct QueuePairBuilder<'a> {
    parent: Parent<'a>,
    srq: Option<&'a SharedReceiveQueue>,
    service: Service,
    caps: QpCaps,
    sq_sig_all: bool,
    gid_index: u8,
    path_mtu: Option<PathMtu>,
    attr: QpAttr,
}

/// What a queue pair belongs to.
#[derive(Clone, Copy, Debug)]
enum Parent<'a> {
    /// A protection domain, with queues of its own.
    Pd { pd: &'a ProtectionDomain, send_cq: &'a CompletionQueue, recv_cq: &'a CompletionQueue },
    /// An XRC domain, as a target.
    Xrc(&'a XrcDomain),
}

/// Rights that a queue pair gives its peer unless the builder is told otherwise. The rights of each
/// memory region still decide.
const ALL_REMOTE: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC).union(Access::FLUSH_GLOBAL);

/// Settings of the builder: `name(argument) sets field = value`.
macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty)?) sets $($field:ident).+ = $value:expr;)+) => {
        impl<'a> QueuePairBuilder<'a> {
            $(
                $(#[$doc])*
                pub const fn $name(mut self $(, $argument: $type)?) -> Self {
                    self.$($field).+ = $value;
                    self
                }
            )+
        }
    };
}

settings! {
    /// Transport service; RC if not set. A target of an XRC domain is and stays one.
    service(service: Service) sets service = service;

    /// Send requests that may be outstanding; 128 if not set.
    max_send_wr(n: u32) sets caps.max_send_wr = n;

    /// Receive requests that may be outstanding; 128 if not set.
    max_recv_wr(n: u32) sets caps.max_recv_wr = n;

    /// Parts of one send request; 4 if not set.
    max_send_sge(n: u32) sets caps.max_send_sge = n;

    /// Parts of one receive request; 4 if not set.
    max_recv_sge(n: u32) sets caps.max_recv_sge = n;

    /// Bytes of inline data; 256 if not set.
    max_inline_data(bytes: u32) sets caps.max_inline_data = bytes;

    /// Every send request reports its success, signaled or not.
    sq_sig_all() sets sq_sig_all = true;

    /// Takes receive requests from `srq` instead of a queue of its own.
    srq(srq: &'a SharedReceiveQueue) sets srq = Some(srq);

    /// What the peer may do; everything that the memory regions allow, if not set.
    access(access: Access) sets attr.access = access;

    /// Own address: index in the GID table; 0 if not set.
    gid_index(index: u8) sets gid_index = index;

    /// Payload of a packet; what the port can do, if not set. Both ends must agree.
    path_mtu(mtu: PathMtu) sets path_mtu = Some(mtu);

    /// Local ACK timeout: 4.096 µs · 2^code, 1..=31, 0 for none; 14 (67 ms) if not set.
    timeout(code: u8) sets attr.timeout = code;

    /// Retries after a timeout, 0..=7; 7 if not set.
    retry_cnt(n: u8) sets attr.retry_cnt = n;

    /// Retries while the peer has no receive request, 0..=6, or 7 for ever; 7 if not set.
    rnr_retry(n: u8) sets attr.rnr_retry = n;

    /// How long the peer waits when this side has no receive request: code 0..=31; 12 (0.64 ms) if
    /// not set.
    min_rnr_timer(code: u8) sets attr.min_rnr_timer = code;

    /// The key a datagram must carry to be received (UD); 0x11111111 if not set.
    qkey(qkey: Qkey) sets attr.qkey = qkey;
}

impl<'a> QueuePairBuilder<'a> {
    fn with_parent(parent: Parent<'a>, service: Service) -> Self {
        let caps =
            QpCaps { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 256 };
        let attr = QpAttr {
            access: ALL_REMOTE,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            qkey: Qkey(0x1111_1111),
            ..QpAttr::default()
        };
        Self { parent, srq: None, service, caps, sq_sig_all: false, gid_index: 0, path_mtu: None, attr }
    }

    /// READs and atomics under way: own ones, and those of the peer; 16 and 16 if not set.
    pub const fn max_rd_atomic(mut self, own: u8, peers: u8) -> Self {
        self.attr.max_rd_atomic = own;
        self.attr.max_dest_rd_atomic = peers;
        self
    }

    /// Makes the queue pair, in state INIT: receive requests can be posted, and its
    /// [`endpoint`](QueuePair::endpoint) can be told to the peer.
    ///
    /// # Errors
    /// [`Error::Argument`] if a setting is above the limits of the card.
    pub fn build(self) -> Result<QueuePair, Error> {
        let id = ObjectId::next();
        let context = self.context();
        let gid = context.gid(self.gid_index)?;
        let mut attr = self.attr;
        attr.path_mtu = match self.path_mtu {
            Some(mtu) => mtu,
            None => context.port_attr()?.active_mtu,
        };
        attr.sq_psn = random_psn();
        let qp = self.create(id)?;
        let (context, service) = (context.clone(), qp.service());
        let qp = QueuePair { qp, id, context, service, gid, gid_index: self.gid_index, attr, cm: None };
        qp.to_init()?;
        Ok(qp)
    }

    /// Makes the queue pair on one end of a connection to be. It is in state INIT, so receive
    /// requests can be posted; from now on the verbs of the id change its state:
    /// [`connect`](CmId::connect), [`accept`](CmId::accept), [`disconnect`](CmId::disconnect). A
    /// queue pair for datagrams can send and receive at once.
    ///
    /// Service, addresses, path MTU, rights, keys, timeouts, retries, READs and atomics are those
    /// of the connection, whatever the builder was told. The connection lasts as long as the queue
    /// pair or the id.
    ///
    /// # Errors
    /// [`Error::Argument`] if a setting is above the limits of the card, the id has no address yet
    /// or has a queue pair, or its address leads to another device.
    pub fn build_on(self, cm: &CmId) -> Result<QueuePair, Error> {
        let id = ObjectId::next();
        let builder = Self { service: cm.service(), ..self };
        let context = builder.context().clone();
        let (gid, gid_index) = own_address(&context, cm);
        let (attr, service) = (builder.attr, builder.service);
        let qp = builder.create(id)?;
        cm.attach(&qp)?;
        Ok(QueuePair { qp, id, context, service, gid, gid_index, attr, cm: Some(cm.clone()) })
    }

    const fn context(&self) -> &Context {
        match self.parent {
            Parent::Pd { pd, .. } => pd.context(),
            Parent::Xrc(domain) => &domain.context,
        }
    }

    fn create(&self, id: ObjectId) -> Result<Arc<provider::Qp>, Error> {
        let (pd, send_cq, recv_cq) = match self.parent {
            Parent::Pd { pd, send_cq, recv_cq } => (pd, send_cq, recv_cq),
            Parent::Xrc(domain) => return Ok(domain.xrcd.create_target(id.0)?),
        };
        Ok(pd.pd.create_qp(provider::QpInit {
            service: self.service,
            caps: self.caps,
            sq_sig_all: self.sq_sig_all,
            send_cq: Arc::clone(&send_cq.cq),
            recv_cq: Arc::clone(&recv_cq.cq),
            srq: self.srq.map(|srq| Arc::clone(&srq.srq)),
            user: id.0,
        })?)
    }
}

/// The own address of `cm`, and its place in the GID table: the first one for an id that is bound
/// to all.
fn own_address(context: &Context, cm: &CmId) -> (Gid, u8) {
    let (own, entries) = (cm.local_gid(), context.gid_entries());
    let entry = entries.iter().find(|entry| Some(entry.gid) == own).or_else(|| entries.first());
    entry.map_or_else(Default::default, |entry| (entry.gid, entry.index))
}

/// Where a connection starts counting: any number, but not the same every time, so that packets of
/// an old connection are not taken for new ones.
fn random_psn() -> Psn {
    use std::hash::{BuildHasher, RandomState};
    Psn::new((RandomState::new().hash_one(0) & 0xff_ffff) as u32)
}
