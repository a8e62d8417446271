//! The target `virtual`: queue pairs of `roxe_transport` in this process, at virtual time.
//!
//! The target has no sockets, threads or waits, so a script runs in microseconds and has the same
//! result each time. Memory, completions and SRQs are those of the simulation (`roxe_sim`). This
//! file drives the queue pairs.

use crate::target::{Answer, Card, Change, Completed, Datagram, Event, FarSide, Handle, NewQp, Piece, Refused, Region};
use crate::target::{Attributes, Extensions, Source, Target, Work};
use roxe_peer::protocol::names;
use roxe_sim::host::{OWN_PD, SRQ_MAX_SGE, Srq};
use roxe_sim::wire::{Batch, Pool};
use roxe_sim::{Mr, SimHost, VecMemory};
use roxe_transport::Qp;
use roxe_transport::cx::TxState;
use roxe_transport::qp::{AttrMask, QpAttr, QpCaps, QpConfig, QpState, Service};
use roxe_transport::time::Instant;
use roxe_transport::wr::{
    Access, Av, Cqe, RecvRequest, SendData, SendFlags, SendOp, SendRequest, Sge, UdDest, WcExtra,
};
use roxe_wire::{Gid, ImmDt, LKey, Packet, PathMtu, Psn, Qkey, Qpn, RKey};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU64;
use std::time::Duration;

/// Number of the first queue pair.
const FIRST_QPN: u32 = 0x11;
/// Number of the first queue pair of the near side.
const FIRST_NEAR: u32 = 0x2a;
/// Maximum length of a region, in bytes.
const MAX_REGION: u32 = 64 << 20;
/// Minimum entries of a completion queue. A script with fewer entries expects an overrun, which
/// this card does not have.
const MIN_CQE: u32 = 4;
/// Maximum limit of a shared receive queue.
const MAX_LIMIT: u32 = 4096;
/// Line rate in bit/s, from which CNPs reduce the rate of queue pairs.
const LINE_RATE: Option<NonZeroU64> = NonZeroU64::new(100_000_000_000);
/// Maximum number of timer or transmit rounds in one step. At the limit, the card raises the event
/// `HANGS`.
const MAX_ROUNDS: usize = 100_000;
/// Event of a transport that does not become idle.
const HANGS: &str = "HANGS";

/// A queue pair and its host.
struct Member {
    qp: Qp,
    host: SimHost,
    cq: Handle,
    srq: Option<usize>,
    alive: bool,
    /// Numbers of send and receive completions for which [`wake`] has run.
    woken: [usize; 2],
}

/// Arming of a completion queue: which completions raise an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Arm {
    #[default]
    Off,
    Solicited,
    Any,
}

/// A card in this process.
#[derive(Default)]
pub struct VirtualCard {
    now: Instant,
    memory: VecMemory,
    regions: Vec<Mr>,
    domains: u32,
    queues: Handle,
    srqs: Vec<Srq>,
    members: Vec<Member>,
    /// Arming of each completion queue, with true once its event was raised.
    arms: BTreeMap<Handle, (Arm, bool)>,
    events: Vec<Event>,
    /// Packets to the near side that it has not received.
    arrived: VecDeque<(Duration, Datagram)>,
    pool: Pool,
}

fn invalid(text: impl Into<String>) -> Refused {
    Refused { text: text.into(), errno: libc::EINVAL }
}

/// Returns the error for a handle without an object.
fn unknown(object: &str, handle: Handle) -> Refused {
    invalid(format!("there is no {object} {handle}"))
}

/// Returns the error for an access beyond the end of a region.
fn outside(at: u64, len: u64, size: usize) -> Refused {
    invalid(format!("{len} bytes at offset {at} exceed the region of {size} bytes"))
}

impl VirtualCard {
    /// Calls `verb` with a queue pair and the time, memory and SRQ of the card, and then transmits
    /// the queue pair's packets.
    fn with<T>(&mut self, at: usize, verb: impl FnOnce(&mut Qp, &mut SimHost) -> T) -> Answer<T> {
        let member =
            self.members.get_mut(at).filter(|member| member.alive).ok_or_else(|| unknown("queue pair", at as u64))?;
        member.host.clock = self.now;
        std::mem::swap(&mut member.host.memory, &mut self.memory);
        let mut srq = member.srq.and_then(|srq| self.srqs.get_mut(srq));
        if let Some(srq) = &mut srq {
            std::mem::swap(&mut member.host.srq, srq);
        }
        let answer = verb(&mut member.qp, &mut member.host);
        if !drive(member, self.now, &mut self.pool, &mut self.arrived) {
            self.events.push(event(HANGS, Source::Other));
        }
        let raised = member.qp.poll_event();
        self.events.extend(raised.iter_names().map(|(name, _)| event(event_name(name), Source::Qp(at as u64))));
        let limits = std::mem::take(&mut member.host.srq.limit_events);
        let limited = member.srq.map_or(Source::Other, |srq| Source::Srq(srq as u64));
        self.events.extend((0..limits).map(|_| event("SRQ_LIMIT_REACHED", limited)));
        if let Some(srq) = &mut srq {
            std::mem::swap(&mut member.host.srq, srq);
        }
        std::mem::swap(&mut member.host.memory, &mut self.memory);
        if let Some(armed) = self.arms.get_mut(&member.cq) {
            wake(member, armed);
        }
        Ok(answer)
    }

    /// Advances time to `until`, or to the next packet for the near side.
    fn advance(&mut self, until: Instant) {
        for _ in 0..MAX_ROUNDS {
            if !self.arrived.is_empty() {
                return;
            }
            let timers = self.members.iter().enumerate().filter(|(_, member)| member.alive);
            let next = timers.filter_map(|(at, member)| Some((member.qp.poll_timeout()?, at))).min();
            let Some((due, at)) = next.filter(|(due, _)| *due <= until) else {
                self.now = self.now.max(until);
                return;
            };
            self.now = self.now.max(due);
            // `with` cannot fail, because the queue pair is alive.
            _ = self.with(at, |qp, host| qp.handle_timeout(host));
        }
        self.events.push(event(HANGS, Source::Other));
        self.now = self.now.max(until);
    }

    fn region(&self, mr: Handle) -> Answer<Mr> {
        self.regions.get(mr as usize).copied().ok_or_else(|| unknown("region", mr))
    }
}

fn sges(pieces: &[Piece]) -> Vec<Sge> {
    pieces.iter().map(|piece| Sge { addr: piece.addr, length: piece.len, lkey: LKey(piece.lkey) }).collect()
}

/// Raises the event of an armed completion queue if a new completion matches the arming.
fn wake(member: &mut Member, (arm, is_raised): &mut (Arm, bool)) {
    for (queue, woken) in [&member.host.sends, &member.host.recvs].into_iter().zip(&mut member.woken) {
        for cqe in queue.iter().skip(std::mem::replace(woken, queue.len())) {
            // clause: CQ-ARM
            if *arm == Arm::Any || (*arm == Arm::Solicited && cqe.solicited) {
                (*arm, *is_raised) = (Arm::Off, true);
            }
        }
    }
}

/// Transmits the packets of a queue pair. Returns false at the limit of rounds.
fn drive(member: &mut Member, now: Instant, pool: &mut Pool, arrived: &mut VecDeque<(Duration, Datagram)>) -> bool {
    let mut batch = Batch::default();
    for _ in 0..MAX_ROUNDS {
        let state = member.qp.poll_transmit(&mut member.host, &mut batch.open(pool, 64, false, 0));
        for (mut net, _, mut bytes) in batch.drain() {
            // Cards choose the IP identification freely.
            net.ident = 0;
            roxe_wire::icrc::seal(&net, &mut bytes);
            arrived.push_back((Duration::from_nanos(now.0), Datagram { net, bytes }));
        }
        if state == TxState::Drained {
            return true;
        }
    }
    false
}

fn event(name: impl Into<String>, of: Source) -> Event {
    Event { name: name.into(), of }
}

/// Returns the name of an event in `enum ibv_event_type`.
fn event_name(name: &str) -> String {
    match name {
        "FATAL" | "REQ_ERR" | "ACCESS_ERR" | "LAST_WQE_REACHED" => format!("QP_{name}"),
        name => name.into(),
    }
}

/// Returns the address of a host in the virtual network.
const fn address_of(ipv6: bool, host: u8) -> IpAddr {
    if ipv6 {
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host as u16))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, host))
    }
}

impl Target for VirtualCard {
    fn card(&self, ipv6: bool) -> Option<Card> {
        Some(Card {
            name: "roxe's transport at virtual time".into(),
            address: address_of(ipv6, 1).into(),
            near: [address_of(ipv6, 2).into(), address_of(ipv6, 3).into()],
            first_near: FIRST_NEAR,
            guid: 2,
            near_port: 0xc0de,
            jitter: Duration::ZERO,
            max_mtu: 4096,
            max_datagram: usize::MAX,
        })
    }

    fn begin(&mut self, _ipv6: bool) -> Answer<()> {
        *self = Self { now: self.now, ..Self::default() };
        Ok(())
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.now.0)
    }

    fn send(&mut self, datagram: &Datagram) -> Answer<()> {
        let Datagram { net, bytes } = datagram;
        // As the engine does, the card drops damaged packets and packets to unknown queue pairs.
        let Ok(packet) = Packet::parse(bytes) else { return Ok(()) };
        if !roxe_wire::icrc::verify(net, bytes) {
            return Ok(());
        }
        let is_destination = |member: &Member| member.alive && member.qp.qpn() == packet.header.bth.dest_qpn;
        if let Some(at) = self.members.iter().position(is_destination) {
            self.with(at, |qp, host| qp.handle_packet(host, net, &packet).is_ok())?;
        }
        Ok(())
    }

    fn receive(&mut self, until: Duration) -> Answer<Option<(Duration, Datagram)>> {
        self.advance(Instant(until.as_nanos() as u64));
        Ok(self.arrived.pop_front())
    }

    fn pause(&mut self, until: Duration) {
        let waiting = std::mem::take(&mut self.arrived);
        self.advance(Instant(until.as_nanos() as u64));
        let later = std::mem::replace(&mut self.arrived, waiting);
        self.arrived.extend(later);
    }
}

impl FarSide for VirtualCard {
    fn alloc_pd(&mut self) -> Answer<Handle> {
        self.domains += 1;
        Ok(u64::from(OWN_PD + self.domains))
    }

    fn register(
        &mut self,
        length: u64,
        access: u32,
        fill: u8,
        pd: Option<Handle>,
        edge: Option<u64>,
    ) -> Answer<Region> {
        let too_long = || invalid(format!("{length} bytes exceed the virtual card's limit of 64 MiB per region"));
        let length = u32::try_from(length).ok().filter(|length| *length <= MAX_REGION).ok_or_else(too_long)?;
        let (pd, rights) = (pd.map_or(OWN_PD, |pd| pd as u32), Access::from_bits_retain(access));
        // clause: KEY-LOCAL-WRITE
        if rights.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) && !rights.contains(Access::LOCAL_WRITE) {
            return Err(invalid("rights of peers to change memory need LOCAL_WRITE"));
        }
        let mr = self.memory.register_across(pd, length, rights, edge);
        self.memory.bytes_mut(mr).fill(fill);
        self.regions.push(mr);
        Ok(Region { mr: self.regions.len() as u64 - 1, addr: mr.addr, lkey: mr.key, rkey: mr.key })
    }

    fn deregister(&mut self, mr: Handle) -> Answer<()> {
        let mr = self.region(mr)?;
        self.memory.deregister(mr);
        Ok(())
    }

    fn create_cq(&mut self, cqe: u32) -> Answer<Handle> {
        if cqe < MIN_CQE {
            return Err(Refused::unsupported("completion queues of the virtual card never overrun"));
        }
        self.queues += 1;
        Ok(self.queues)
    }

    fn create_srq(&mut self, pd: Option<Handle>) -> Answer<Handle> {
        if pd.is_some() {
            return Err(Refused::unsupported(
                "all shared receive queues of the virtual card have one protection domain",
            ));
        }
        self.srqs.push(Srq::default());
        Ok(self.srqs.len() as u64 - 1)
    }

    fn create_qp(&mut self, new: &NewQp) -> Answer<(Handle, u32)> {
        let service = match new.service.as_str() {
            "RC" => Service::Rc,
            "UC" => Service::Uc,
            "UD" => Service::Ud,
            service => return Err(Refused::unsupported(format!("the virtual card has no {service} queue pairs"))),
        };
        if new.pd.is_some() {
            return Err(Refused::unsupported("all queue pairs of the virtual card have the same protection domain"));
        }
        let [sends, receives, sges, inline] = new.caps;
        let caps = QpCaps {
            max_send_wr: sends,
            max_recv_wr: if new.srq.is_some() { 0 } else { receives },
            max_send_sge: sges,
            max_recv_sge: sges,
            max_inline_data: inline,
        };
        let qpn = FIRST_QPN + self.members.len() as u32;
        let srq_max_sge = new.srq.map(|_| SRQ_MAX_SGE as u32);
        let config = QpConfig { srq_max_sge, line_rate: LINE_RATE, ..QpConfig::new(Qpn::new(qpn), service, caps) };
        let host = SimHost::with_depth(16);
        let srq = new.srq.map(|srq| srq as usize);
        let woken = [0; 2];
        self.members.push(Member { qp: Qp::new(config), host, cq: new.cq, srq, alive: true, woken });
        Ok((self.members.len() as u64 - 1, qpn))
    }

    fn modify_qp(&mut self, qp: Handle, change: &Change) -> Answer<()> {
        let ipv6 = change.dest.is_some_and(|(_, dgid)| !dgid.is_ipv4());
        let sgid = Gid::from(address_of(ipv6, 1));
        let wanted = change.clone();
        let modify = move |qp: &mut Qp, host: &mut SimHost| {
            let (attr, mask) = attributes(&wanted, *qp.attr(), qp.service(), sgid)?;
            qp.modify(host, &attr, mask).map_err(|error| invalid(error.to_string()))
        };
        self.with(qp as usize, modify)??;
        if change.to == "RESET" {
            // clause: STATE-RESET-COMPLETIONS
            let member = &mut self.members[qp as usize];
            (member.host.sends, member.host.recvs, member.woken) = Default::default();
        }
        Ok(())
    }

    fn query_qp(&mut self, qp: Handle) -> Answer<String> {
        self.with(qp as usize, |qp, _| format!("{:?}", qp.state()).to_ascii_uppercase())
    }

    fn destroy_qp(&mut self, qp: Handle) -> Answer<()> {
        let change = Change { to: "RESET".into(), ..Change::default() };
        self.modify_qp(qp, &change)?;
        self.members[qp as usize].alive = false;
        Ok(())
    }

    fn post_send(&mut self, qp: Handle, work: &Work) -> Answer<()> {
        let sges = sges(&work.pieces);
        let op = operation(work)?;
        let flags = work.flags.iter().filter_map(|flag| SendFlags::from_name(flag)).collect();
        let data = work.inline.as_deref().map_or(SendData::Sges(&sges), SendData::Inline);
        let sgid = |dgid: Gid| Gid::from(address_of(!dgid.is_ipv4(), 1));
        let ud = work.datagram.map(|(dgid, qpn, qkey)| UdDest {
            av: Av {
                sgid: sgid(dgid),
                dgid,
                hop_limit: work.hop_limit,
                traffic_class: work.traffic_class,
                ..Av::default()
            },
            qpn: Qpn::new(qpn),
            qkey: Qkey(qkey),
        });
        let request = SendRequest { wr_id: work.wr_id, op, flags, data, ud };
        self.with(qp as usize, |qp, _| qp.post_send(&request).map_err(|error| invalid(error.to_string())))?
    }

    fn post_recv(&mut self, qp: Handle, wr_id: u64, pieces: &[Piece]) -> Answer<()> {
        let sges = sges(pieces);
        let request = RecvRequest { wr_id, sges: &sges };
        self.with(qp as usize, |qp, _| qp.post_recv(&request).map_err(|error| invalid(error.to_string())))?
    }

    fn post_srq_recv(&mut self, srq: Handle, wr_id: u64, pieces: &[Piece]) -> Answer<()> {
        let sges = sges(pieces);
        let srq = self.srqs.get_mut(srq as usize).ok_or_else(|| unknown("SRQ", srq))?;
        srq.post(&RecvRequest { wr_id, sges: &sges });
        Ok(())
    }

    fn poll(&mut self, cq: Handle) -> Answer<Vec<Completed>> {
        let mine = self.members.iter_mut().filter(|member| member.cq == cq);
        let done = mine.flat_map(|member| {
            member.woken = [0; 2];
            member.host.sends.drain(..).chain(member.host.recvs.drain(..))
        });
        Ok(done.map(completed).collect())
    }

    fn read(&mut self, mr: Handle, at: u64, len: u64) -> Answer<Vec<u8>> {
        let bytes = self.memory.bytes(self.region(mr)?);
        let end = at.saturating_add(len) as usize;
        bytes.get(at as usize..end).map(<[u8]>::to_vec).ok_or_else(|| outside(at, len, bytes.len()))
    }

    fn write(&mut self, mr: Handle, at: u64, bytes: &[u8]) -> Answer<()> {
        let region = self.region(mr)?;
        let memory = self.memory.bytes_mut(region);
        let (end, size) = (at.saturating_add(bytes.len() as u64) as usize, memory.len());
        let target = memory.get_mut(at as usize..end).ok_or_else(|| outside(at, bytes.len() as u64, size))?;
        target.copy_from_slice(bytes);
        Ok(())
    }

    fn events(&mut self) -> Answer<Vec<Event>> {
        Ok(std::mem::take(&mut self.events))
    }
}

impl Extensions for VirtualCard {
    fn arm(&mut self, cq: Handle, solicited: bool) -> Answer<()> {
        for member in self.members.iter_mut().filter(|member| member.cq == cq) {
            member.woken = [member.host.sends.len(), member.host.recvs.len()];
        }
        let (arm, _) = self.arms.entry(cq).or_default();
        // Arming for any completion includes solicited completions.
        if *arm != Arm::Any {
            *arm = if solicited { Arm::Solicited } else { Arm::Any };
        }
        Ok(())
    }

    fn is_woken(&mut self, cq: Handle) -> Answer<bool> {
        Ok(self.arms.get_mut(&cq).is_some_and(|(_, is_raised)| std::mem::take(is_raised)))
    }

    fn attributes(&mut self, qp: Handle) -> Answer<Attributes> {
        self.with(qp as usize, |qp, _| {
            let attr = qp.attr();
            let numbers = [
                ("mtu", attr.path_mtu.bytes().into()),
                ("qkey", attr.qkey.0.into()),
                ("rq_psn", attr.rq_psn.get().into()),
                ("sq_psn", attr.sq_psn.get().into()),
                ("dest_qpn", attr.dest_qpn.get().into()),
                ("rd_atomic", attr.max_rd_atomic.into()),
                ("dest_rd_atomic", attr.max_dest_rd_atomic.into()),
                ("rnr_timer", attr.min_rnr_timer.into()),
                ("timeout", attr.timeout.into()),
                ("retry_cnt", attr.retry_cnt.into()),
                ("rnr_retry", attr.rnr_retry.into()),
                ("alt_timeout", attr.alt_timeout.into()),
                ("traffic_class", attr.av.traffic_class.into()),
                ("hop_limit", attr.av.hop_limit.into()),
            ];
            let migration = format!("{:?}", attr.path_mig_state).to_ascii_uppercase();
            Attributes { numbers: numbers.into(), access: attr.access.bits(), migration }
        })
    }

    fn set_limit(&mut self, srq: Handle, limit: u32) -> Answer<()> {
        if limit > MAX_LIMIT {
            return Err(invalid(format!("the limit {limit} exceeds the size of the queue, {MAX_LIMIT}")));
        }
        let srq = self.srqs.get_mut(srq as usize).ok_or_else(|| unknown("SRQ", srq))?;
        srq.arm(limit as usize);
        Ok(())
    }
}

/// Converts a change to attributes and their mask.
fn attributes(change: &Change, old: QpAttr, service: Service, sgid: Gid) -> Answer<(QpAttr, AttrMask)> {
    type M = AttrMask;
    if change.migration.is_some() || change.alternate.is_some() {
        return Err(Refused::unsupported("the virtual card has no alternate paths"));
    }
    let state = QpState::ALL.into_iter().find(|state| format!("{state:?}").eq_ignore_ascii_case(&change.to));
    let state = state
        .ok_or_else(|| invalid(format!("unknown state {}; use RESET, INIT, RTR, RTS, SQD, SQE or ERR", change.to)))?;
    let (mut attr, mut mask) = (QpAttr { state, port: 1, ..old }, M::STATE);
    if state == QpState::Init && old.state == QpState::Reset {
        mask |= M::PKEY_INDEX | M::PORT;
    }
    if let (Some((qpn, dgid)), true) = (change.dest, service != Service::Ud) {
        attr.dest_qpn = Qpn::new(qpn);
        let (traffic_class, hop_limit) = (change.traffic_class, change.hop_limit.unwrap_or(64));
        attr.av = Av { sgid, dgid, traffic_class, hop_limit, ..Av::default() };
        mask |= M::DEST_QPN | M::AV;
    }
    if let Some(mtu) = change.path_mtu {
        let known = PathMtu::ALL.into_iter().find(|known| known.bytes() == mtu);
        attr.path_mtu =
            known.ok_or_else(|| invalid(format!("{mtu} is not a path MTU; use 256, 512, 1024, 2048 or 4096")))?;
        mask |= M::PATH_MTU;
    }
    if change.notify {
        attr.en_sqd_async_notify = true;
        mask |= M::EN_SQD_ASYNC_NOTIFY;
    }
    macro_rules! set {
        ($($from:ident => $to:ident, $bit:ident, $as:expr;)*) => {
            $(if let Some(value) = change.$from { attr.$to = $as(value); mask |= M::$bit; })*
        };
    }
    set! {
        access => access, ACCESS_FLAGS, Access::from_bits_retain;
        qkey => qkey, QKEY, Qkey;
        rq_psn => rq_psn, RQ_PSN, Psn::new;
        sq_psn => sq_psn, SQ_PSN, Psn::new;
        timeout => timeout, TIMEOUT, u8::from;
        retry_cnt => retry_cnt, RETRY_CNT, u8::from;
        rnr_retry => rnr_retry, RNR_RETRY, u8::from;
        min_rnr_timer => min_rnr_timer, MIN_RNR_TIMER, u8::from;
        max_rd_atomic => max_rd_atomic, MAX_QP_RD_ATOMIC, u8::from;
        max_dest_rd_atomic => max_dest_rd_atomic, MAX_DEST_RD_ATOMIC, u8::from;
    }
    Ok((attr, mask))
}

fn operation(work: &Work) -> Answer<SendOp> {
    let (remote_addr, rkey, imm) = (work.remote_addr, RKey(work.rkey), ImmDt(work.imm.to_be_bytes()));
    Ok(match work.opcode.as_str() {
        "SEND" => SendOp::Send,
        "SEND_WITH_IMM" => SendOp::SendImm(imm),
        "SEND_WITH_INV" => SendOp::SendInvalidate(rkey),
        "RDMA_WRITE" => SendOp::Write { remote_addr, rkey },
        "RDMA_WRITE_WITH_IMM" => SendOp::WriteImm { remote_addr, rkey, imm },
        "RDMA_READ" => SendOp::Read { remote_addr, rkey },
        "ATOMIC_CMP_AND_SWP" => SendOp::CompareSwap { remote_addr, rkey, compare: work.compare_add, swap: work.swap },
        "ATOMIC_FETCH_AND_ADD" => SendOp::FetchAdd { remote_addr, rkey, add: work.compare_add },
        "LOCAL_INV" => SendOp::LocalInvalidate(rkey),
        operation => return Err(Refused::unsupported(format!("the virtual card has no operation {operation}"))),
    })
}

fn completed(cqe: Cqe) -> Completed {
    let (imm, invalidated) = match cqe.extra {
        WcExtra::None => (None, None),
        WcExtra::Imm(imm) => (Some(u32::from_be_bytes(imm.0)), None),
        WcExtra::Invalidated(key) => (None, Some(key.0)),
    };
    Completed {
        wr_id: cqe.wr_id,
        status: names::name(names::WC_STATUSES, cqe.status as u32),
        opcode: names::name(names::WC_OPCODES, cqe.opcode as u32),
        byte_len: cqe.byte_len,
        imm,
        invalidated,
        src_qp: cqe.src_qpn.get(),
        tag: None,
        flags: cqe.grh.into(),
        qpn: cqe.qpn.get(),
    }
}
