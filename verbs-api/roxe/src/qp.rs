//! Queue pairs: building, connecting, posting.
//!
//! Touches the provider's QP.

use crate::{
    Access, AttrMask, CompletionQueue, Endpoint, Error, Gid, ObjectId, PathMtu, ProtectionDomain, Psn, Qkey, QpAttr,
    QpState, Qpn, Service, Sge, SharedReceiveQueue, WorkRequest,
};
use roxe_provider as provider;
use roxe_transport::qp::{PostError, QpCaps};
use roxe_transport::wr::RecvRequest;
use std::sync::Arc;

/// What a queue pair will be. Made by [`ProtectionDomain::create_qp`]; every setting has a default that works.
#[derive(Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct QueuePairBuilder<'a> {
    pd: &'a ProtectionDomain,
    send_cq: &'a CompletionQueue,
    recv_cq: &'a CompletionQueue,
    srq: Option<&'a SharedReceiveQueue>,
    service: Service,
    caps: QpCaps,
    sq_sig_all: bool,
    gid_index: u8,
    path_mtu: Option<PathMtu>,
    attr: QpAttr,
}

/// Rights that a queue pair gives its peer unless the builder is told otherwise. The rights of each memory region still
/// decide.
const ALL_REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

impl<'a> QueuePairBuilder<'a> {
    pub(crate) fn new(pd: &'a ProtectionDomain, send_cq: &'a CompletionQueue, recv_cq: &'a CompletionQueue) -> Self {
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
        let (service, sq_sig_all, gid_index, path_mtu) = (Service::Rc, false, 0, None);
        Self { pd, send_cq, recv_cq, srq: None, service, caps, sq_sig_all, gid_index, path_mtu, attr }
    }

    /// Transport service; RC if not set.
    pub const fn service(mut self, service: Service) -> Self {
        self.service = service;
        self
    }

    /// Send requests that may be outstanding; 128 if not set.
    pub const fn max_send_wr(mut self, n: u32) -> Self {
        self.caps.max_send_wr = n;
        self
    }

    /// Receive requests that may be outstanding; 128 if not set.
    pub const fn max_recv_wr(mut self, n: u32) -> Self {
        self.caps.max_recv_wr = n;
        self
    }

    /// Parts of one send request; 4 if not set.
    pub const fn max_send_sge(mut self, n: u32) -> Self {
        self.caps.max_send_sge = n;
        self
    }

    /// Parts of one receive request; 4 if not set.
    pub const fn max_recv_sge(mut self, n: u32) -> Self {
        self.caps.max_recv_sge = n;
        self
    }

    /// Bytes of inline data; 256 if not set.
    pub const fn max_inline_data(mut self, bytes: u32) -> Self {
        self.caps.max_inline_data = bytes;
        self
    }

    /// Every send request reports its success, signaled or not.
    pub const fn sq_sig_all(mut self) -> Self {
        self.sq_sig_all = true;
        self
    }

    /// Takes receive requests from `srq` instead of a queue of its own.
    pub const fn srq(mut self, srq: &'a SharedReceiveQueue) -> Self {
        self.srq = Some(srq);
        self
    }

    /// What the peer may do; everything that the memory regions allow, if not set.
    pub const fn access(mut self, access: Access) -> Self {
        self.attr.access = access;
        self
    }

    /// Own address: index in the GID table; 0 if not set.
    pub const fn gid_index(mut self, index: u8) -> Self {
        self.gid_index = index;
        self
    }

    /// Payload of a packet; what the port can do, if not set. Both ends must agree.
    pub const fn path_mtu(mut self, mtu: PathMtu) -> Self {
        self.path_mtu = Some(mtu);
        self
    }

    /// Local ACK timeout: 4.096 µs · 2^code, 1..=31, 0 for none; 14 (67 ms) if not set.
    pub const fn timeout(mut self, code: u8) -> Self {
        self.attr.timeout = code;
        self
    }

    /// Retries after a timeout, 0..=7; 7 if not set.
    pub const fn retry_cnt(mut self, n: u8) -> Self {
        self.attr.retry_cnt = n;
        self
    }

    /// Retries while the peer has no receive request, 0..=6, or 7 for ever; 7 if not set.
    pub const fn rnr_retry(mut self, n: u8) -> Self {
        self.attr.rnr_retry = n;
        self
    }

    /// How long the peer waits when this side has no receive request: code 0..=31; 12 (0.64 ms) if not set.
    pub const fn min_rnr_timer(mut self, code: u8) -> Self {
        self.attr.min_rnr_timer = code;
        self
    }

    /// READs and atomics under way: own ones, and those of the peer; 16 and 16 if not set.
    pub const fn max_rd_atomic(mut self, own: u8, peers: u8) -> Self {
        self.attr.max_rd_atomic = own;
        self.attr.max_dest_rd_atomic = peers;
        self
    }

    /// The key a datagram must carry to be received (UD); 0x11111111 if not set.
    pub const fn qkey(mut self, qkey: Qkey) -> Self {
        self.attr.qkey = qkey;
        self
    }

    /// Makes the queue pair, in state INIT: receive requests can be posted, and its [`endpoint`](QueuePair::endpoint)
    /// can be told to the peer.
    ///
    /// # Errors
    /// [`Error::Provider`] if a setting is above the limits of the card.
    pub fn build(self) -> Result<QueuePair, Error> {
        let id = ObjectId::next();
        let gid = self.pd.context().gid(self.gid_index)?;
        let mut attr = self.attr;
        attr.path_mtu = match self.path_mtu {
            Some(mtu) => mtu,
            None => self.pd.context().port_attr()?.active_mtu,
        };
        attr.sq_psn = random_psn();
        let qp = self.pd.provider().create_qp(provider::QpInit {
            service: self.service,
            caps: self.caps,
            sq_sig_all: self.sq_sig_all,
            send_cq: Arc::clone(self.send_cq.provider()),
            recv_cq: Arc::clone(self.recv_cq.provider()),
            srq: self.srq.map(|srq| Arc::clone(srq.provider())),
            user: id.0,
        })?;
        let qp = QueuePair { qp, id, pd: self.pd.clone(), service: self.service, gid, gid_index: self.gid_index, attr };
        qp.to_init()?;
        Ok(qp)
    }
}

/// Where a connection starts counting: any number, but not the same every time, so that packets of an old connection
/// are not taken for new ones.
fn random_psn() -> Psn {
    use std::hash::{BuildHasher, RandomState};
    Psn::new((RandomState::new().hash_one(0) & 0xff_ffff) as u32)
}

/// A queue pair: one end of a connection, or a datagram socket.
///
/// [`QueuePairBuilder::build`] makes it; [`connect`](Self::connect) (RC, UC) or [`activate`](Self::activate) (UD) makes
/// it ready. All methods take `&self`: several threads may post to one queue pair. Posting is safe: the card looks every
/// buffer up by its key when it uses it, so a region that was dropped meanwhile ends in a failed completion.
#[derive(Debug)]
pub struct QueuePair {
    qp: Arc<provider::Qp>,
    id: ObjectId,
    pd: ProtectionDomain,
    service: Service,
    gid: Gid,
    gid_index: u8,
    /// What the builder was told, for the state changes to come.
    attr: QpAttr,
}

impl QueuePair {
    /// Its number.
    pub fn qp_num(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Its service.
    pub const fn service(&self) -> Service {
        self.service
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.qp.state()
    }

    /// Its attributes as they are now.
    pub fn query(&self) -> QpAttr {
        self.qp.query().0
    }

    /// Who this is, for asynchronous events.
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// What the peer needs to reach it.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint { gid: self.gid, qpn: self.qp_num(), psn: self.attr.sq_psn }
    }

    /// Connects it to `peer` and makes it ready to receive and to send (RC and UC). The peer does the same with
    /// [`endpoint`](Self::endpoint) of this side, in any order; an RC request that comes too early is repeated.
    ///
    /// # Errors
    /// [`Error::WrongService`] on UD; [`Error::Provider`] when it was connected already, or a setting is out of range.
    pub fn connect(&self, peer: &Endpoint) -> Result<(), Error> {
        if self.service == Service::Ud {
            return Err(
                self.wrong_service("is a datagram queue pair: use `activate`, and give each request a destination")
            );
        }
        self.to_rtr(peer)?;
        self.to_rts()
    }

    /// Makes it ready to receive and to send (UD).
    ///
    /// # Errors
    /// [`Error::WrongService`] on RC and UC; [`Error::Provider`] when it was active already.
    pub fn activate(&self) -> Result<(), Error> {
        if self.service != Service::Ud {
            return Err(self.wrong_service("needs a peer: use `connect`"));
        }
        self.modify(&QpAttr { state: QpState::Rtr, ..self.attr }, AttrMask::STATE)?;
        self.to_rts()
    }

    fn wrong_service(&self, advice: &'static str) -> Error {
        Error::WrongService { qpn: self.qp_num(), service: self.service, advice }
    }

    fn to_init(&self) -> Result<(), Error> {
        let key = if self.service == Service::Ud { AttrMask::QKEY } else { AttrMask::ACCESS_FLAGS };
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | key;
        self.modify(&QpAttr { state: QpState::Init, ..self.attr }, mask)
    }

    fn to_rtr(&self, peer: &Endpoint) -> Result<(), Error> {
        let av = self.pd.context().resolve(peer.gid, self.gid_index)?;
        let attr = QpAttr { state: QpState::Rtr, av, dest_qpn: peer.qpn, rq_psn: peer.psn, ..self.attr };
        let mut mask = AttrMask::STATE | AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        if self.service == Service::Rc {
            mask |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        }
        self.modify(&attr, mask)
    }

    fn to_rts(&self) -> Result<(), Error> {
        let mut mask = AttrMask::STATE | AttrMask::SQ_PSN;
        if self.service == Service::Rc {
            mask |= AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
        }
        self.modify(&QpAttr { state: QpState::Rts, ..self.attr }, mask)
    }

    /// Changes the attributes that `mask` names, as `ibv_modify_qp` does. `connect` and `activate` are made of this.
    ///
    /// # Errors
    /// [`Error::Provider`], which names the attributes that are missing, not allowed here, or out of range.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        Ok(self.qp.modify(attr, mask)?)
    }

    /// Posts one send request.
    ///
    /// # Errors
    /// [`Error::Post`] if the queue is full, or the request is not possible on this queue pair.
    pub fn post_send(&self, request: &WorkRequest<'_>) -> Result<(), Error> {
        self.post_send_list(std::slice::from_ref(request))
    }

    /// Posts several send requests at once; their packets leave together.
    ///
    /// # Errors
    /// [`Error::Post`] for the first that is refused; those before it are posted, those behind it are not.
    pub fn post_send_list(&self, requests: &[WorkRequest<'_>]) -> Result<(), Error> {
        let mut doorbell = self.qp.send();
        for (index, request) in requests.iter().enumerate() {
            if let Err(source) = doorbell.push(&request.as_request()) {
                drop(doorbell);
                return Err(self.refused(request.name(), index, source));
            }
        }
        Ok(())
    }

    /// Posts a receive request: one message lands in `sges`, in order, and the completion carries `wr_id`. On UD, 40
    /// bytes of network header come first.
    ///
    /// # Errors
    /// [`Error::Post`] if the queue is full, the list too long, or the queue pair takes from a shared queue.
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), Error> {
        self.qp.post_recv(&RecvRequest { wr_id, sges }).map_err(|source| self.refused("a receive request", 0, source))
    }

    fn refused(&self, what: &'static str, index: usize, source: PostError) -> Error {
        Error::Post { qpn: self.qp_num(), state: self.state(), what, index, source }
    }
}
