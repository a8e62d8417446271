//! Queue pairs: building, connecting and posting.

use crate::cm::CmId;
use crate::{
    Access, ArgumentError, AttrMask, CompletionQueue, Context, Endpoint, Error, Gid, MigState, ObjectId, PathMtu,
    ProtectionDomain, Psn, Qkey, QpAttr, QpState, Qpn, RefusedRequest, Service, Sge, SharedReceiveQueue, WorkRequest,
    XrcDomain,
};
use roxe_provider as provider;
use roxe_transport::qp::{PostError, QpCaps};
use roxe_transport::wr::RecvRequest;
use std::sync::Arc;

/// An alternate path to the peer, for [`QueuePair::offer_path`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlternatePath {
    /// Another address of the peer.
    pub peer: Gid,
    /// Local address of the path: index in the GID table.
    pub gid_index: u8,
    /// Local ACK timeout of the path: 4.096 µs · 2^code.
    pub timeout: u8,
}

/// A queue pair: one end of a connection, or a datagram socket.
///
/// [`QueuePairBuilder::build`](crate::QueuePairBuilder::build) creates it;
/// [`connect`](Self::connect) (RC, UC, XRC) or [`activate`](Self::activate) (UD) makes it ready.
/// Several threads may post to one queue pair. Posting is safe: the device looks up every buffer by
/// its key, so a request on a region dropped meanwhile fails.
#[derive(Debug)]
pub struct QueuePair {
    pub(crate) qp: Arc<provider::Qp>,
    pub(crate) id: ObjectId,
    pub(crate) context: Context,
    pub(crate) service: Service,
    pub(crate) gid: Gid,
    gid_index: u8,
    /// Attributes that the builder set, for later state changes.
    pub(crate) attr: QpAttr,
    /// The connection id that the queue pair was built on.
    pub(crate) cm: Option<CmId>,
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if let Some(cm) = &self.cm {
            cm.detach();
        }
    }
}

impl QueuePair {
    /// Returns the queue pair number.
    pub fn qp_num(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Returns the transport service.
    pub const fn service(&self) -> Service {
        self.service
    }

    /// Returns the current state.
    pub fn state(&self) -> QpState {
        self.qp.state()
    }

    /// Returns the current attributes.
    pub fn query(&self) -> QpAttr {
        self.qp.query().0
    }

    /// Returns the identity of the queue pair in asynchronous events.
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> ProtectionDomain {
        ProtectionDomain::wrap(self.qp.pd())
    }

    /// Returns the completion queue of send requests.
    pub fn send_cq(&self) -> CompletionQueue {
        CompletionQueue::wrap(self.qp.send_cq())
    }

    /// Returns the completion queue of receive requests.
    pub fn recv_cq(&self) -> CompletionQueue {
        CompletionQueue::wrap(self.qp.recv_cq())
    }

    /// Returns the endpoint of this side, which the peer passes to [`connect`](Self::connect). Not
    /// needed for a queue pair built on a [`CmId`].
    pub fn endpoint(&self) -> Endpoint {
        Endpoint { gid: self.gid, qpn: self.qp_num(), psn: self.attr.sq_psn }
    }

    /// Connects the queue pair to `peer` and makes it ready to receive and send (RC, UC and XRC).
    /// The peer must connect to the [`endpoint`](Self::endpoint) of this side. Either side may
    /// connect first: an RC request that arrives too early is retransmitted. Waits up to a second
    /// until the link address of the peer, or of the router to it, is known.
    ///
    /// # Errors
    /// - [`Error::Argument`] on UD, if the queue pair is not in the state INIT (it is connected
    ///   already, for example), if a setting is out of range, if the GID of `peer` is zero, a
    ///   multicast group or of another address family, or if the local address is gone.
    /// - [`Error::Peer`] if no route leads to the peer, or the link address is still unknown.
    /// - [`Error::Environment`] if the system forbids the route, or the socket of the local address
    ///   cannot be opened; [`Error::Resources`] if the process has no free descriptor for it.
    pub fn connect(&self, peer: &Endpoint) -> Result<(), Error> {
        if self.service == Service::Ud {
            return Err(
                self.wrong_service("is a datagram queue pair: use `activate`, and give each request a destination")
            );
        }
        self.to_rtr(peer)?;
        self.to_rts()
    }

    /// Makes the queue pair ready to receive and send (UD).
    ///
    /// # Errors
    /// [`Error::Argument`] on other services, or if the queue pair is not in the state INIT (it is
    /// active already, for example).
    pub fn activate(&self) -> Result<(), Error> {
        if self.service != Service::Ud {
            return Err(self.wrong_service("needs a peer: use `connect`"));
        }
        self.modify(&QpAttr { state: QpState::Rtr, ..self.attr }, AttrMask::STATE)?;
        self.to_rts()
    }

    fn wrong_service(&self, advice: &'static str) -> Error {
        ArgumentError::WrongService { qpn: self.qp_num(), service: self.service, advice }.into()
    }

    fn to_init(&self) -> Result<(), Error> {
        let key = if self.service == Service::Ud { AttrMask::QKEY } else { AttrMask::ACCESS_FLAGS };
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | key;
        self.modify(&QpAttr { state: QpState::Init, ..self.attr }, mask)
    }

    fn to_rtr(&self, peer: &Endpoint) -> Result<(), Error> {
        let av = self.context.resolve(peer.gid, self.gid_index)?;
        let attr = QpAttr { state: QpState::Rtr, av, dest_qpn: peer.qpn, rq_psn: peer.psn, ..self.attr };
        let mut mask = AttrMask::STATE | AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        if self.service.is_reliable() {
            mask |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        }
        self.modify(&attr, mask)
    }

    fn to_rts(&self) -> Result<(), Error> {
        let mut mask = AttrMask::STATE | AttrMask::SQ_PSN;
        if self.service.is_reliable() {
            mask |= AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
        }
        self.modify(&QpAttr { state: QpState::Rts, ..self.attr }, mask)
    }

    /// Changes the attributes in `mask`, as `ibv_modify_qp` does. `connect` and `activate` use it.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such transition, or if attributes are missing, not
    /// allowed, or out of range; the text lists them. With an address in `mask`, also
    /// [`Error::Peer`], [`Error::Environment`] and [`Error::Resources`] as for
    /// [`connect`](Self::connect). After an error nothing has changed.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        Ok(self.qp.modify(attr, mask)?)
    }

    /// Offers `path` to the peer as an alternate path of the connection (RC, UC and XRC). The path
    /// is armed when the peer has offered one too and packets have arrived at both ends. Then
    /// either end can [`migrate`](Self::migrate) to it; a reliable end migrates on its own when the
    /// first path fails. After a migration the program must offer a path again.
    ///
    /// ```
    /// use roxe::{AlternatePath, AsyncEventKind, Context, MigState, WorkRequest};
    /// use std::time::Duration;
    ///
    /// let context = Context::open_first()?;
    /// let entries = context.gid_entries();
    /// // Two paths to the same port: its first address, and one of another family.
    /// let family = entries[0].gid.is_ipv4();
    /// let Some(second) = entries.iter().find(|entry| entry.gid.is_ipv4() != family) else {
    ///     return Ok(());
    /// };
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let (alice, bob) = (pd.create_qp(&cq, &cq).build()?, pd.create_qp(&cq, &cq).build()?);
    /// alice.connect(&bob.endpoint())?;
    /// bob.connect(&alice.endpoint())?;
    ///
    /// let path = AlternatePath { peer: second.gid, gid_index: second.index, timeout: 14 };
    /// alice.offer_path(&path)?;
    /// bob.offer_path(&path)?;
    /// # let ping = |from: &roxe::QueuePair, to: &roxe::QueuePair| {
    /// #     to.post_recv(0, &[])?;
    /// #     from.post_send(&WorkRequest::send_inline(b"").signaled())?;
    /// #     (0..2).try_for_each(|_| cq.wait(Duration::from_secs(5))?.check().map(drop))
    /// # };
    /// ping(&alice, &bob)?; // a message and its acknowledgement, each way
    /// ping(&bob, &alice)?;
    /// assert_eq!(alice.path_state(), MigState::Armed);
    ///
    /// alice.migrate()?;
    /// ping(&alice, &bob)?; // takes the other path, and bob follows
    /// assert_eq!(bob.path_state(), MigState::Migrated);
    /// assert_eq!(context.next_async_event()?.kind, AsyncEventKind::PathMig);
    /// # Ok::<(), roxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if the queue pair is not connected, on UD, while a path is armed, if the
    /// timeout is above 31, if `gid_index` has no address, or if `peer` is zero, a multicast group
    /// or of another address family. [`Error::Environment`] if the socket of the local address
    /// cannot be opened; [`Error::Resources`] if the process has no free descriptor for it.
    pub fn offer_path(&self, path: &AlternatePath) -> Result<(), Error> {
        let alt_av = self.context.resolve(path.peer, path.gid_index)?;
        let (alt_timeout, path_mig_state) = (path.timeout, MigState::Rearm);
        let attr = QpAttr { alt_av, alt_port: self.attr.port, alt_timeout, path_mig_state, ..self.attr };
        self.modify(&attr, AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE)
    }

    /// Migrates to the offered path now; the peer follows. Both ends get
    /// [`AsyncEventKind::PathMig`](crate::AsyncEventKind::PathMig). Does nothing if no path has
    /// been offered since the last migration.
    ///
    /// # Errors
    /// [`Error::Argument`] if the offered path is not armed yet, if the queue pair is not
    /// connected, or on UD.
    pub fn migrate(&self) -> Result<(), Error> {
        self.modify(&QpAttr { path_mig_state: MigState::Migrated, ..self.attr }, AttrMask::PATH_MIG_STATE)
    }

    /// Returns the migration state of the offered path.
    pub fn path_state(&self) -> MigState {
        self.query().path_mig_state
    }

    /// Joins the multicast group `group`: the queue pair receives the group's messages from now on
    /// (UD). Joining twice has no effect. A sender need not be a member. It sends to
    /// [`Qpn::MULTICAST`], and receives its own messages if it is a member.
    ///
    /// ```
    /// use roxe::{Access, Context, Gid, Qkey, Qpn, Service, WorkRequest};
    /// use std::net::Ipv4Addr;
    /// use std::time::Duration;
    ///
    /// let context = Context::open_first()?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let qkey = Qkey(7);
    /// let build = || pd.create_qp(&cq, &cq).service(Service::Ud).qkey(qkey).build();
    /// let (sender, first, second) = (build()?, build()?, build()?);
    /// let inbox = pd.alloc_mr(200, Access::LOCAL_WRITE)?;
    ///
    /// // A group that no other program uses.
    /// let [high, low, ..] = std::process::id().to_le_bytes();
    /// let group = Gid::from(Ipv4Addr::new(239, high, low, 77));
    /// for (member, half) in [(&first, inbox.slice(..100)?), (&second, inbox.slice(100..)?)] {
    ///     member.activate()?;
    ///     member.post_recv(1, &[half])?;
    ///     member.attach_mcast(group)?;
    /// }
    /// sender.activate()?;
    /// let everyone = pd.create_ah(group, 0)?;
    /// let hello = WorkRequest::send_inline(b"hello all").to(&everyone, Qpn::MULTICAST, qkey);
    /// sender.post_send(&hello)?;
    ///
    /// for _ in 0..2 {
    ///     assert_eq!(cq.wait(Duration::from_secs(5))?.check()?.src_qp(), sender.qp_num());
    /// }
    /// assert_eq!(inbox.to_vec(40..49)?, b"hello all");
    /// assert_eq!(inbox.to_vec(140..149)?, b"hello all");
    /// # Ok::<(), roxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Argument`] if `group` is not a multicast address, or the queue pair is not UD.
    /// - [`Error::Resources`] if the device has its maximum number of groups, the group its maximum
    ///   number of queue pairs, or the process no free descriptor.
    /// - [`Error::Environment`] if another user's program receives the group on UDP port 4791.
    pub fn attach_mcast(&self, group: Gid) -> Result<(), Error> {
        Ok(self.qp.attach_mcast(group)?)
    }

    /// Leaves a multicast group. A dropped queue pair leaves all its groups.
    ///
    /// # Errors
    /// [`Error::Argument`] if the queue pair is not a member.
    pub fn detach_mcast(&self, group: Gid) -> Result<(), Error> {
        Ok(self.qp.detach_mcast(group)?)
    }

    /// Posts one send request.
    ///
    /// # Errors
    /// [`Error::Resources`] if the queue is full, [`Error::Argument`] if the state, the service or
    /// the settings of the queue pair do not allow the request.
    pub fn post_send(&self, request: &WorkRequest<'_>) -> Result<(), Error> {
        self.post_send_list(std::slice::from_ref(request))
    }

    /// Posts several send requests at once; the device sends their packets together.
    ///
    /// # Errors
    /// Errors of [`post_send`](Self::post_send), for the first refused request
    /// ([`Error::request`]). Requests before it are posted, requests after it are not.
    pub fn post_send_list(&self, requests: &[WorkRequest<'_>]) -> Result<(), Error> {
        let mut doorbell = self.qp.send();
        for (index, request) in requests.iter().enumerate() {
            let pushed = match (self.service, request.srq) {
                _ if request.is_impossible => Err(PostError::BadOpcode),
                (Service::XrcIni, None) if !request.request.op.is_local() => Err(PostError::MissingDestination),
                (_, srq) => doorbell.push_to_srq(srq.map_or(0, |srq| srq.0), &request.request),
            };
            if let Err(source) = pushed {
                drop(doorbell);
                return Err(self.refused(request.name(), index, source));
            }
        }
        Ok(())
    }

    /// Posts a receive request for one message. The device writes the message to `sges`, in order,
    /// and the completion carries `wr_id`. On UD, the first 40 bytes are the GRH.
    ///
    /// # Errors
    /// [`Error::Resources`] if the queue is full. [`Error::Argument`] if the list is too long, the
    /// queue pair takes its receives from a shared receive queue, is XRC, or is in the state RESET.
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), Error> {
        self.qp.post_recv(&RecvRequest { wr_id, sges }).map_err(|source| self.refused("a receive request", 0, source))
    }

    fn refused(&self, operation: &'static str, index: usize, source: PostError) -> Error {
        RefusedRequest { qp: Some((self.qp_num(), self.state())), operation, index, source }.into()
    }
}

impl ProtectionDomain {
    /// Returns a builder for a queue pair whose requests complete in these queues, which may be the
    /// same queue.
    pub fn create_qp<'a>(&'a self, send_cq: &'a CompletionQueue, recv_cq: &'a CompletionQueue) -> QueuePairBuilder<'a> {
        QueuePairBuilder::with_parent(Parent::Pd { pd: self, send_cq, recv_cq }, Service::Rc)
    }
}

impl XrcDomain {
    /// Returns a builder for the receiving end of a connection ([`Service::XrcTgt`]). An XRC target
    /// has no queues, so the builder's settings of queues have no effect.
    pub fn create_target(&self) -> QueuePairBuilder<'_> {
        QueuePairBuilder::with_parent(Parent::Xrc(self), Service::XrcTgt)
    }
}

/// Builds a queue pair. [`ProtectionDomain::create_qp`] and [`XrcDomain::create_target`] return it.
/// Every setting has a working default.
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

/// The object that creates a queue pair.
#[derive(Clone, Copy, Debug)]
enum Parent<'a> {
    /// A protection domain and completion queues.
    Pd { pd: &'a ProtectionDomain, send_cq: &'a CompletionQueue, recv_cq: &'a CompletionQueue },
    /// The XRC domain of a target.
    Xrc(&'a XrcDomain),
}

/// Default rights of the peer: all. The rights of each memory region limit them.
const ALL_REMOTE: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC).union(Access::FLUSH_GLOBAL);

/// Defines setters of the builder: `name(argument) sets field = value`.
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
    /// Sets the transport service; RC if not set. No effect on a target of an XRC domain.
    service(service: Service) sets service = service;

    /// Sets the number of send requests that may be outstanding; 128 if not set.
    max_send_wr(n: u32) sets caps.max_send_wr = n;

    /// Sets the number of receive requests that may be outstanding; 128 if not set.
    max_recv_wr(n: u32) sets caps.max_recv_wr = n;

    /// Sets the number of list elements of one send request; 4 if not set.
    max_send_sge(n: u32) sets caps.max_send_sge = n;

    /// Sets the number of list elements of one receive request; 4 if not set.
    max_recv_sge(n: u32) sets caps.max_recv_sge = n;

    /// Sets the number of bytes of inline data; 256 if not set.
    max_inline_data(bytes: u32) sets caps.max_inline_data = bytes;

    /// Makes every send request complete on success, as if it were signaled.
    sq_sig_all() sets sq_sig_all = true;

    /// Takes receive requests from `srq` instead of its own receive queue.
    srq(srq: &'a SharedReceiveQueue) sets srq = Some(srq);

    /// Sets the rights of the peer, which the rights of each memory region limit; all if not set.
    access(access: Access) sets attr.access = access;

    /// Sets the local address, by its index in the GID table; 0 if not set.
    gid_index(index: u8) sets gid_index = index;

    /// Sets the path MTU; the active MTU of the port if not set. Both ends need the same.
    path_mtu(mtu: PathMtu) sets path_mtu = Some(mtu);

    /// Sets the local ACK timeout, 4.096 µs · 2^code: 1..=31, 0 for none; 14 (67 ms) if not set.
    timeout(code: u8) sets attr.timeout = code;

    /// Sets the number of retries after a timeout, 0..=7; 7 if not set.
    retry_cnt(n: u8) sets attr.retry_cnt = n;

    /// Sets the number of retries while the peer has no receive request: 0..=6, or 7 for no limit;
    /// 7 if not set.
    rnr_retry(n: u8) sets attr.rnr_retry = n;

    /// Sets the time after which the peer retries when this side has no receive request: code
    /// 0..=31; 12 (0.64 ms) if not set.
    min_rnr_timer(code: u8) sets attr.min_rnr_timer = code;

    /// Sets the Q_Key that a datagram must carry to be received (UD); 0x11111111 if not set.
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

    /// Sets the number of outstanding READs and atomics of this side and of the peer; 16 and 16 if
    /// not set.
    pub const fn max_rd_atomic(mut self, own: u8, peers: u8) -> Self {
        self.attr.max_rd_atomic = own;
        self.attr.max_dest_rd_atomic = peers;
        self
    }

    /// Creates the queue pair in state INIT: the program can post receive requests, and send its
    /// [`endpoint`](QueuePair::endpoint) to the peer.
    ///
    /// # Errors
    /// - [`Error::Argument`] if a setting exceeds the limits of the device, the GID table has no
    ///   address at the index of the builder, the queues are of another context than the protection
    ///   domain, or the service is [`Service::XrcTgt`] (use [`XrcDomain::create_target`]).
    ///   Path MTU, timeouts, retries and numbers of READs are checked later, by
    ///   [`connect`](QueuePair::connect).
    /// - [`Error::Resources`] if the device has its maximum number of queue pairs, or the process
    ///   has no free descriptor or cannot start a thread.
    /// - [`Error::Environment`] if the interface has no address, or no socket can be opened, for
    ///   example because another user has UDP port 4791.
    ///
    /// [`Service::Raw`] always fails, because this API does not support it.
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

    /// Creates the queue pair on a connection id, in state INIT: the program can post receive
    /// requests. From now on the verbs of the id change the state of the queue pair:
    /// [`connect`](CmId::connect), [`accept`](CmId::accept), [`disconnect`](CmId::disconnect). A UD
    /// queue pair is in state RTS at once.
    ///
    /// The connection determines service, addresses, path MTU, rights, keys, timeouts, retries, and
    /// the numbers of READs and atomics; the builder's settings of these have no effect. The
    /// connection ends when both the queue pair and the id are dropped.
    ///
    /// # Errors
    /// [`Error::Argument`] if a setting exceeds the limits of the device, the queues are of another
    /// context than the protection domain, the id has no address yet or has a queue pair, or its
    /// address belongs to another device. [`Error::Resources`] and [`Error::Environment`] as for
    /// [`build`](Self::build) and, if the id has joined multicast groups, as for
    /// [`attach_mcast`](QueuePair::attach_mcast).
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
            user_context: id.0,
        })?)
    }
}

/// Returns the local address of `cm` and its GID index; the first entry of the GID table for a
/// wildcard address.
fn own_address(context: &Context, cm: &CmId) -> (Gid, u8) {
    let (own, entries) = (cm.local_gid(), context.gid_entries());
    let entry = entries.iter().find(|entry| Some(entry.gid) == own).or_else(|| entries.first());
    entry.map_or_else(Default::default, |entry| (entry.gid, entry.index))
}

/// Returns a random first PSN, so that a new connection does not accept packets of an old one.
fn random_psn() -> Psn {
    use std::hash::{BuildHasher, RandomState};
    Psn::new((RandomState::new().hash_one(0) & 0xff_ffff) as u32)
}
