//! Shared by tests over real sockets: an open device with memory, queue pairs, and polling.

pub(crate) mod ends;
pub(crate) mod ids;
pub(crate) mod namespace;
pub(crate) mod peer;
pub(crate) mod ping_pong;

use roxe_net::udp::BareLink;
use roxe_provider::wire::{Gid, PathMtu, Psn, Qkey, Qpn, RKey, ROCE_PORT};
use roxe_provider::{
    Access, AhAttr, AttrMask, Av, Context, Cq, CqInit, Cqe, Error, Mr, Pd, Qp, QpAttr, QpCaps, QpInit, QpState,
    RecvRequest, SendData, SendFlags, SendOp, SendRequest, Service, Sge, Srq, UdDest, devices,
};
use socket2::SockAddr;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum wait of a test.
const TIMEOUT: Duration = Duration::from_secs(20);
pub(crate) const QKEY: Qkey = Qkey(0x1234_5678);
/// Length of the buffer of a [`Node`] in bytes.
pub(crate) const LEN: usize = 4 << 20;
/// ACK timeout of 268 ms, eight times: a busy machine may preempt a process that long.
const ACK_TIMEOUT: u8 = 16;

/// Returns a socket that sends and receives raw datagrams, at a loopback address.
pub(crate) fn bare_peer(address: Ipv4Addr) -> BareLink {
    BareLink::open(address.into(), Ipv4Addr::LOCALHOST.into()).unwrap()
}

/// Returns the RoCE port of the loopback device.
pub(crate) fn victim() -> SockAddr {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, ROCE_PORT).into()
}

/// An open loopback device with a registered buffer.
pub(crate) struct Node {
    pub(crate) context: Arc<Context>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) cq: Arc<Cq>,
    pub(crate) mr: Arc<Mr>,
    pub(crate) memory: *mut u8,
}

impl Node {
    pub(crate) fn open() -> Self {
        Self::open_device(0)
    }

    /// Opens device `index`.
    pub(crate) fn open_device(index: usize) -> Self {
        let context = devices().unwrap().get(index).expect("find the device").open().unwrap();
        let cq = context.create_cq(CqInit { cqe: 4096, ..CqInit::default() }).unwrap();
        Self::open_in(context, cq)
    }

    /// Uses this context and completion queue.
    pub(crate) fn open_in(context: Arc<Context>, cq: Arc<Cq>) -> Self {
        Self::open_with_buffer(context, cq, LEN)
    }

    /// Opens the loopback device with a buffer of one page, for tests that open it thousands of
    /// times: the buffer is leaked.
    pub(crate) fn open_small() -> Self {
        let context = devices().unwrap().first().expect("find a device").open().unwrap();
        let cq = context.create_cq(CqInit { cqe: 4096, ..CqInit::default() }).unwrap();
        Self::open_with_buffer(context, cq, 4096)
    }

    fn open_with_buffer(context: Arc<Context>, cq: Arc<Cq>, len: usize) -> Self {
        let pd = context.alloc_pd().unwrap();
        let memory = Box::leak(vec![0u8; len].into_boxed_slice()).as_mut_ptr();
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        // SAFETY: leaked memory that is accessed through raw pointers only.
        let mr = unsafe { pd.reg_mr(memory as u64, len as u64, memory as u64, all) }.unwrap();
        Self { context, pd, cq, mr, memory }
    }

    pub(crate) fn addr(&self, offset: usize) -> u64 {
        self.memory as u64 + offset as u64
    }

    pub(crate) fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { addr: self.addr(offset), length: length as u32, lkey: self.mr.lkey() }
    }

    pub(crate) fn fill(&self, offset: usize, length: usize, seed: u8) {
        for (i, byte) in pattern(length, seed).into_iter().enumerate() {
            // SAFETY: inside the leaked buffer, which only this test uses.
            unsafe { self.memory.add(offset + i).write_volatile(byte) };
        }
    }

    pub(crate) fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        // SAFETY: inside the leaked buffer; no operation that writes there is in flight when a test
        // looks.
        (0..length).map(|i| unsafe { self.memory.add(offset + i).read_volatile() }).collect()
    }

    pub(crate) fn qp(&self, service: Service) -> Arc<Qp> {
        self.qp_with(service, None)
    }

    pub(crate) fn qp_with(&self, service: Service, srq: Option<Arc<Srq>>) -> Arc<Qp> {
        self.try_qp(service, srq).unwrap()
    }

    pub(crate) fn try_qp(&self, service: Service, srq: Option<Arc<Srq>>) -> Result<Arc<Qp>, Error> {
        let caps = QpCaps { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };
        let (send_cq, recv_cq) = (Arc::clone(&self.cq), Arc::clone(&self.cq));
        self.pd.create_qp(QpInit { service, caps, sq_sig_all: false, send_cq, recv_cq, srq, user_context: 7 })
    }

    /// Returns the address vector from GID `index` of this node to `dgid`.
    pub(crate) fn av(&self, index: u8, dgid: Gid) -> Av {
        let attr = AhAttr { dgid, sgid_index: index, hop_limit: 64, port: 1, has_grh: true, ..AhAttr::default() };
        self.context.resolve_av(&attr).unwrap()
    }

    /// Polls until there are `count` completions.
    pub(crate) fn wait(&self, count: usize) -> Vec<Cqe> {
        let (start, mut all) = (Instant::now(), Vec::new());
        while all.len() < count {
            self.cq.poll(count - all.len(), |cqe| all.push(*cqe)).unwrap();
            assert!(start.elapsed() < TIMEOUT, "{} of {count} completions; {:?}", all.len(), self.context.counters());
        }
        all
    }
}

/// Polls both nodes until each has its number of completions.
pub(crate) fn wait_both(a: (&Node, usize), b: (&Node, usize)) -> (Vec<Cqe>, Vec<Cqe>) {
    let (start, mut done) = (Instant::now(), (Vec::new(), Vec::new()));
    while done.0.len() < a.1 || done.1.len() < b.1 {
        a.0.cq.poll(64, |cqe| done.0.push(*cqe)).unwrap();
        b.0.cq.poll(64, |cqe| done.1.push(*cqe)).unwrap();
        let counters = a.0.context.counters();
        assert!(start.elapsed() < TIMEOUT, "{} and {} completions; {counters:?}", done.0.len(), done.1.len());
    }
    done
}

pub(crate) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}

/// Moves a connected queue pair to RTS towards `dest`.
pub(crate) fn connect(qp: &Qp, av: Av, dest: Qpn, mtu: PathMtu) {
    connect_with(qp, av, dest, mtu, ACK_TIMEOUT);
}

/// Connects like [`connect`], with this ACK timeout; 0 disables retransmission.
pub(crate) fn connect_with(qp: &Qp, av: Av, dest: Qpn, mtu: PathMtu, timeout: u8) {
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let service = qp.service();
    let receives = matches!(service, Service::Rc | Service::XrcTgt);
    let mut attr = QpAttr { state: QpState::Init, port: 1, access, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS).unwrap();
    attr = QpAttr {
        state: QpState::Rtr,
        av,
        dest_qpn: dest,
        path_mtu: mtu,
        rq_psn: Psn::new(77),
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        ..attr
    };
    let mask = AttrMask::STATE | AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let rc_mask = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    qp.modify(&attr, if receives { mask | rc_mask } else { mask }).unwrap();
    attr = QpAttr {
        state: QpState::Rts,
        sq_psn: Psn::new(77),
        timeout,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 4,
        ..attr
    };
    let rc_mask = AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
    let mask = AttrMask::STATE | AttrMask::SQ_PSN;
    let more = match service {
        Service::Rc | Service::XrcIni => rc_mask,
        Service::XrcTgt => AttrMask::TIMEOUT,
        Service::Uc | Service::Ud | Service::Raw => AttrMask::empty(),
    };
    qp.modify(&attr, mask | more).unwrap();
}

/// Moves a datagram queue pair to RTS.
pub(crate) fn activate(qp: &Qp) {
    let attr = QpAttr { state: QpState::Init, port: 1, qkey: QKEY, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY).unwrap();
    qp.modify(&QpAttr { state: QpState::Rtr, ..attr }, AttrMask::STATE).unwrap();
    qp.modify(&QpAttr { state: QpState::Rts, ..attr }, AttrMask::STATE | AttrMask::SQ_PSN).unwrap();
}

/// Connects queue pairs of two nodes over GID `index`.
pub(crate) fn pair(a: &Node, b: &Node, service: Service, index: u8, mtu: PathMtu) -> (Arc<Qp>, Arc<Qp>) {
    let (qa, qb) = (a.qp(service), b.qp(service));
    let gid = |node: &Node| node.context.gid(1, index.into()).unwrap();
    connect(&qa, a.av(index, gid(b)), qb.qpn(), mtu);
    connect(&qb, b.av(index, gid(a)), qa.qpn(), mtu);
    (qa, qb)
}

pub(crate) fn request<'a>(wr_id: u64, op: SendOp, sges: &'a [Sge]) -> SendRequest<'a> {
    SendRequest { wr_id, op, flags: SendFlags::SIGNALED, data: SendData::Sges(sges), ud: None }
}

pub(crate) fn post(qp: &Qp, wr_id: u64, op: SendOp, sge: Sge) {
    qp.post_send(&[request(wr_id, op, &[sge])]).unwrap();
}

pub(crate) fn post_recv(qp: &Qp, wr_id: u64, sge: Sge) {
    qp.post_recv(&RecvRequest { wr_id, sges: &[sge] }).unwrap();
}

pub(crate) fn datagram<'a>(wr_id: u64, av: Av, qpn: Qpn, sges: &'a [Sge]) -> SendRequest<'a> {
    SendRequest { ud: Some(UdDest { av, qpn, qkey: QKEY }), ..request(wr_id, SendOp::Send, sges) }
}

pub(crate) fn write_to(node: &Node, offset: usize) -> SendOp {
    SendOp::Write { remote_addr: node.addr(offset), rkey: node.mr.rkey() }
}

pub(crate) fn read_from(node: &Node, offset: usize) -> SendOp {
    SendOp::Read { remote_addr: node.addr(offset), rkey: node.mr.rkey() }
}

/// Reports that a test is skipped.
pub(crate) fn no_ipv6() {
    eprintln!("skipped: the loopback interface has no IPv6 address");
}

/// Returns the value of a counter.
pub(crate) fn counter(context: &Context, name: &str) -> u64 {
    let counters = context.counters();
    counters.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no counter {name}")).1
}

/// Memory of a peer process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) addr: u64,
    pub(crate) rkey: RKey,
}
