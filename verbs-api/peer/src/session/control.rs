//! Commands that create and modify objects.

use super::{Object, ROCE_V2, Session, data, mtu_bytes};
use crate::protocol::{Args, Refusal, Result, from_hex, limits, names};
use crate::verbs::{Ah, Cq, Mr, Mw, Pd, Qp, QpInit, Srq, Xrcd};
use core::ffi::c_int;
use roxe_abi::{ibv_ah_attr, ibv_gid, ibv_gid_entry, ibv_global_route, ibv_mw_bind_info, ibv_qp_attr, ibv_qp_cap};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::rc::Rc;

/// Default number of entries of a completion queue or work queue.
const DEFAULT_ENTRIES: u32 = 64;

impl Session {
    pub(super) fn reg(&mut self, args: &Args) -> Result<Value> {
        let length: usize = args.number("length")?;
        self.table.check_room(length)?;
        if length == 0 {
            return Err(Refusal::invalid("length must not be 0"));
        }
        let access = args.flags("access", names::ACCESS)?.unwrap_or(0);
        let edge = args.optional("edge")?;
        let mr = Rc::new(Mr::register(&self.pd(args)?, length, access, &fill(args)?, edge)?);
        let (addr, lkey, rkey) = (mr.addr(0, length)?, mr.lkey(), mr.rkey());
        Ok(json!({"mr": self.table.insert(Object::Mr(mr)), "addr": addr, "lkey": lkey, "rkey": rkey}))
    }

    pub(super) fn rereg(&mut self, args: &Args) -> Result<Value> {
        let mr = self.table.mr(args.number("mr")?)?;
        let access = args.flags("access", names::ACCESS)?.ok_or_else(|| Refusal::invalid("access is missing"))?;
        mr.set_access(access)?;
        Ok(json!({"lkey": mr.lkey(), "rkey": mr.rkey()}))
    }

    pub(super) fn alloc_pd(&mut self) -> Result<Value> {
        self.table.check_room(0)?;
        let pd = Rc::new(Pd::alloc(&self.context)?);
        Ok(json!({"pd": self.table.insert(Object::Pd(pd))}))
    }

    fn new_cq(&mut self, entries: u32, reports_tags: bool) -> Result<(u64, Rc<Cq>)> {
        self.table.check_room(0)?;
        let create: fn(&_, _) -> _ = if reports_tags { Cq::create_for_tags } else { Cq::create };
        let cq = Rc::new(create(&self.context, entries)?);
        Ok((self.table.insert(Object::Cq(Rc::clone(&cq))), cq))
    }

    pub(super) fn create_cq(&mut self, args: &Args) -> Result<Value> {
        let (handle, cq) = self.new_cq(entries(args, "cqe")?, args.is_set("tags")?)?;
        Ok(json!({"cq": handle, "cqe": cq.cqe()}))
    }

    pub(super) fn resize_cq(&mut self, args: &Args) -> Result<Value> {
        let cq = self.table.cq(args.number("cq")?)?;
        cq.resize(entries(args, "cqe")?)?;
        Ok(json!({"cqe": cq.cqe()}))
    }

    pub(super) fn create_srq(&mut self, args: &Args) -> Result<Value> {
        self.table.check_room(0)?;
        let (max_wr, max_sge) = (entries(args, "max_wr")?, args.or("max_sge", 1)?);
        let pd = self.pd(args)?;
        if let Some(tags) = args.optional("tags")? {
            let cq = self.table.cq(args.number("cq")?)?;
            let srq = Rc::new(Srq::create_for_tags(&pd, [max_wr, max_sge, tags], cq)?);
            return Ok(json!({"srq": self.table.insert(Object::Srq(srq))}));
        }
        let Some(xrcd) = args.optional("xrcd")? else {
            let srq = Rc::new(Srq::create(&pd, max_wr, max_sge)?);
            return Ok(json!({"srq": self.table.insert(Object::Srq(srq))}));
        };
        let (xrcd, cq) = (self.table.xrcd(xrcd)?, self.table.cq(args.number("cq")?)?);
        let srq = Rc::new(Srq::create_xrc(&pd, [max_wr, max_sge], xrcd, cq)?);
        let srqn = srq.number()?;
        Ok(json!({"srq": self.table.insert(Object::Srq(srq)), "srqn": srqn}))
    }

    pub(super) fn open_xrcd(&mut self) -> Result<Value> {
        self.table.check_room(0)?;
        let xrcd = Rc::new(Xrcd::open(&self.context)?);
        Ok(json!({"xrcd": self.table.insert(Object::Xrcd(xrcd))}))
    }

    pub(super) fn create_qp(&mut self, args: &Args) -> Result<Value> {
        self.table.check_room(0)?;
        let kind = args.named("type", names::QP_TYPES)?;
        let pd = self.pd(args)?;
        let srq = args.optional("srq")?.map(|handle| self.table.srq(handle)).transpose()?;
        let (max_send_wr, max_recv_wr) = (entries(args, "max_send_wr")?, entries(args, "max_recv_wr")?);
        let max_sge = args.or("max_sge", 1)?;
        let cap = ibv_qp_cap {
            max_send_wr,
            max_recv_wr: if srq.is_some() { 0 } else { max_recv_wr },
            max_send_sge: max_sge,
            max_recv_sge: if srq.is_some() { 0 } else { max_sge },
            max_inline_data: args.or("max_inline", 0)?,
        };
        let (cq, send_cq) = match args.optional("cq")? {
            Some(handle) => (handle, self.table.cq(handle)?),
            None => self.new_cq(max_send_wr + max_recv_wr, false)?,
        };
        let (recv_handle, recv_cq) = match args.optional("recv_cq")? {
            Some(handle) => (handle, self.table.cq(handle)?),
            None => (cq, Rc::clone(&send_cq)),
        };
        let xrcd = args.optional("xrcd")?.map(|handle| self.table.xrcd(handle)).transpose()?;
        let init = QpInit { kind, send_cq, recv_cq, srq, xrcd, cap, sig_all: args.is_set("sig_all")? };
        let qp = Rc::new(create_qp_with_inline(&pd, init)?);
        let number = qp.number();
        Ok(json!({"qp": self.table.insert(Object::Qp(qp)), "qpn": number, "cq": cq, "recv_cq": recv_handle}))
    }

    pub(super) fn modify_qp(&mut self, args: &Args) -> Result<()> {
        let qp = self.table.qp(args.number("qp")?)?;
        let (attr, set) = modification(args, qp.kind(), self.port, || self.gids())?;
        qp.modify(attr, set).map_err(|refusal| {
            // The kernel does so before it asks the card (drivers/infiniband/core/verbs.c,
            // _ib_modify_qp), so the refusal says nothing about the card.
            if set & mask::ALT_PATH != 0 && refusal.errno == libc::EINVAL && self.context.is_of_kernel() {
                let text = "Linux refuses alternate paths of RoCE devices";
                return Refusal { text: text.into(), errno: libc::EOPNOTSUPP };
            }
            refusal
        })
    }

    pub(super) fn query_qp(&mut self, args: &Args) -> Result<Value> {
        let qp = self.table.qp(args.number("qp")?)?;
        Ok(qp_values(&qp.query()?))
    }

    pub(super) fn create_ah(&mut self, args: &Args) -> Result<Value> {
        self.table.check_room(0)?;
        let attr = path(args, self.port, || self.gids())?;
        let attr = attr.ok_or_else(|| Refusal::invalid("dgid is missing"))?;
        let ah = Rc::new(Ah::create(&self.pd(args)?, attr)?);
        Ok(json!({"ah": self.table.insert(Object::Ah(ah))}))
    }

    pub(super) fn alloc_mw(&mut self, args: &Args) -> Result<Value> {
        self.table.check_room(0)?;
        let kind: u32 = args.or("type", 1)?;
        if !(1..=2).contains(&kind) {
            return Err(Refusal::invalid("type must be 1 or 2"));
        }
        let mw = Rc::new(Mw::alloc(&self.pd(args)?, kind)?);
        let rkey = mw.rkey();
        Ok(json!({"mw": self.table.insert(Object::Mw(mw)), "rkey": rkey}))
    }

    pub(super) fn bind_mw(&mut self, args: &Args) -> Result<Value> {
        let (qp, mw) = (self.table.qp(args.number("qp")?)?, self.table.mw(args.number("mw")?)?);
        let mr = self.table.mr(args.number("mr")?)?;
        let (offset, length): (usize, usize) = (args.or("offset", 0)?, args.number("length")?);
        let access = args.flags("access", names::ACCESS)?.unwrap_or(0);
        let (addr, length) = (mr.addr(offset, length)?, length as u64);
        let part = ibv_mw_bind_info { addr, length, mw_access_flags: access, ..ibv_mw_bind_info::ZERO };
        let rkey = qp.bind(&mw, &mr, part, args.or("wr_id", 0)?, data::send_flags(args)?)?;
        Ok(json!({ "rkey": rkey }))
    }

    pub(super) fn set_member(&mut self, args: &Args, joins: bool) -> Result<()> {
        let group = args.gid("gid")?.ok_or_else(|| Refusal::invalid("gid is missing"))?;
        let handle = args.number("qp")?;
        self.table.qp(handle)?.set_member(group, joins)?;
        if joins {
            return self.join_on_host(handle, group);
        }
        self.memberships.remove(&(handle, group));
        Ok(())
    }

    /// Joins an IPv4 group with a socket on the card's interface, as `rdma_join_multicast` does:
    /// the kernel's rxe receives only the groups that its host has joined.
    fn join_on_host(&mut self, qp: u64, group: [u8; 16]) -> Result<()> {
        let Some(address) = ipv4(&group).filter(Ipv4Addr::is_multicast) else { return Ok(()) };
        let Some(local) = self.gids()?.iter().find_map(|entry| ipv4(&entry.gid.raw)) else { return Ok(()) };
        let joined = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
        let joined = joined.and_then(|socket| socket.join_multicast_v4(&address, &local).map(|()| socket));
        let refused = |error| Refusal::os(format_args!("cannot join multicast group {address} at {local}"), &error);
        self.memberships.insert((qp, group), joined.map_err(refused)?);
        Ok(())
    }
}

/// Creates a queue pair. If the card refuses only its inline data, the error is `EOPNOTSUPP`: a
/// card may grant less than a program asks for, and `ibv_query_device` reports no limit.
fn create_qp_with_inline(pd: &Rc<Pd>, init: QpInit) -> Result<Qp> {
    let inline = init.cap.max_inline_data;
    let cap = ibv_qp_cap { max_inline_data: 0, ..init.cap };
    let without = QpInit { cap, ..init.clone() };
    Qp::create(pd, init).map_err(|refusal| {
        if inline > 0 && Qp::create(pd, without).is_ok() {
            let text = format!("the card grants a queue pair less than {inline} bytes of inline data");
            return Refusal { text, errno: libc::EOPNOTSUPP };
        }
        refusal
    })
}

/// Returns the argument `name`, a number of entries within the limit of the agent.
fn entries(args: &Args, name: &str) -> Result<u32> {
    let entries = args.or(name, DEFAULT_ENTRIES)?;
    if entries > limits::QUEUE {
        return Err(Refusal::invalid(format!("{name} must be at most {}", limits::QUEUE)));
    }
    Ok(entries)
}

/// Returns the content of new memory from the argument `fill`: one value for every byte, or
/// hexadecimal bytes; zeros by default.
fn fill(args: &Args) -> Result<Vec<u8>> {
    let bytes = match args.object().get("fill") {
        Some(Value::String(text)) => from_hex(text).filter(|bytes| !bytes.is_empty()),
        _ => Some(vec![args.or("fill", 0)?]),
    };
    bytes.ok_or_else(|| Refusal::invalid("fill must be a number from 0 to 255, or a text of hexadecimal bytes"))
}

fn qp_values(attr: &ibv_qp_attr) -> Value {
    let state = |state: i32| names::name(names::STATES, state.unsigned_abs());
    json!({
        "state": state(attr.qp_state), "cur_state": state(attr.cur_qp_state),
        "path_mtu": mtu_bytes(attr.path_mtu), "qkey": attr.qkey, "rq_psn": attr.rq_psn,
        "sq_psn": attr.sq_psn, "dest_qpn": attr.dest_qp_num,
        "access": names::flags(names::ACCESS, attr.qp_access_flags),
        "max_send_wr": attr.cap.max_send_wr, "max_recv_wr": attr.cap.max_recv_wr,
        "max_send_sge": attr.cap.max_send_sge, "max_recv_sge": attr.cap.max_recv_sge,
        "max_inline": attr.cap.max_inline_data,
        "dgid": Ipv6Addr::from(attr.ah_attr.grh.dgid.raw).to_string(),
        "sgid_index": attr.ah_attr.grh.sgid_index, "hop_limit": attr.ah_attr.grh.hop_limit,
        "traffic_class": attr.ah_attr.grh.traffic_class, "flow_label": attr.ah_attr.grh.flow_label,
        "port": attr.port_num, "pkey_index": attr.pkey_index, "sq_draining": attr.sq_draining != 0,
        "max_rd_atomic": attr.max_rd_atomic, "max_dest_rd_atomic": attr.max_dest_rd_atomic,
        "min_rnr_timer": attr.min_rnr_timer, "timeout": attr.timeout, "retry_cnt": attr.retry_cnt,
        "rnr_retry": attr.rnr_retry, "alt_timeout": attr.alt_timeout,
        "path_mig": names::name(names::MIGRATION, attr.path_mig_state.unsigned_abs()),
    })
}

/// `enum ibv_qp_attr_mask`.
mod mask {
    pub(super) const STATE: u32 = 1 << 0;
    pub(super) const SQD_NOTIFY: u32 = 1 << 2;
    pub(super) const ACCESS: u32 = 1 << 3;
    pub(super) const PKEY_INDEX: u32 = 1 << 4;
    pub(super) const PORT: u32 = 1 << 5;
    pub(super) const QKEY: u32 = 1 << 6;
    pub(super) const AV: u32 = 1 << 7;
    pub(super) const PATH_MTU: u32 = 1 << 8;
    pub(super) const TIMEOUT: u32 = 1 << 9;
    pub(super) const RETRY_CNT: u32 = 1 << 10;
    pub(super) const RNR_RETRY: u32 = 1 << 11;
    pub(super) const RQ_PSN: u32 = 1 << 12;
    pub(super) const MAX_RD_ATOMIC: u32 = 1 << 13;
    pub(super) const ALT_PATH: u32 = 1 << 14;
    pub(super) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(super) const SQ_PSN: u32 = 1 << 16;
    pub(super) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(super) const PATH_MIG_STATE: u32 = 1 << 18;
    pub(super) const DEST_QPN: u32 = 1 << 20;
}

const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;
const RC: u32 = 2;
const UD: u32 = 4;
const XRC: [u32; 2] = [9, 10];

/// Returns the attributes that the transition to the state `to` requires (`man ibv_modify_qp`).
fn required(kind: u32, to: u32) -> u32 {
    use mask::*;
    // XRC queue pairs take the attributes of RC, and ignore those of the direction that they lack.
    let kind = if XRC.contains(&kind) { RC } else { kind };
    match (to, kind) {
        (INIT, UD) => PKEY_INDEX | PORT | QKEY,
        (INIT, _) => PKEY_INDEX | PORT | ACCESS,
        (RTR, RC) => AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
        (RTR, kind) if kind != UD => AV | PATH_MTU | DEST_QPN | RQ_PSN,
        (RTS, RC) => SQ_PSN | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_RD_ATOMIC,
        (RTS, _) => SQ_PSN,
        _ => 0,
    }
}

/// Returns the attributes of a `modify_qp` request, and their mask.
///
/// Required attributes that are missing get a default. Transitions from RTS, SQD or SQE to RTS
/// require no attributes, so the controller must set `exact` for them.
fn modification(
    args: &Args,
    kind: u32,
    port: u8,
    gids: impl Fn() -> Result<Vec<ibv_gid_entry>>,
) -> Result<(ibv_qp_attr, u32)> {
    let mut attr = ibv_qp_attr::ZERO;
    let mut set = 0;
    let mut wanted = 0;
    if args.has("to") {
        let to = args.named("to", names::STATES)?;
        attr.qp_state = to.cast_signed();
        set |= mask::STATE;
        wanted = if args.is_set("exact")? { 0 } else { required(kind, to) };
    }
    // Sets attributes, each with its mask bit, argument, field and default.
    macro_rules! set_attributes {
        ($($bit:ident $name:literal $field:ident $default:expr;)+) => {
            $(if args.has($name) || wanted & mask::$bit != 0 {
                attr.$field = args.or($name, $default)?;
                set |= mask::$bit;
            })+
        };
    }
    set_attributes! {
        PKEY_INDEX "pkey_index" pkey_index 0;
        PORT "port" port_num port;
        QKEY "qkey" qkey 0x1111_1111;
        DEST_QPN "dest_qpn" dest_qp_num 0;
        RQ_PSN "rq_psn" rq_psn 0;
        SQ_PSN "sq_psn" sq_psn 0;
        MAX_RD_ATOMIC "max_rd_atomic" max_rd_atomic 1;
        MAX_DEST_RD_ATOMIC "max_dest_rd_atomic" max_dest_rd_atomic 1;
        MIN_RNR_TIMER "min_rnr_timer" min_rnr_timer 12;
        TIMEOUT "timeout" timeout 14;
        RETRY_CNT "retry_cnt" retry_cnt 7;
        RNR_RETRY "rnr_retry" rnr_retry 7;
    }
    if args.has("path_mtu") || wanted & mask::PATH_MTU != 0 {
        attr.path_mtu = mtu(args.or("path_mtu", 1024)?)?;
        set |= mask::PATH_MTU;
    }
    if let Some(access) = args.flags("access", names::ACCESS)?.or_else(|| (wanted & mask::ACCESS != 0).then_some(0)) {
        attr.qp_access_flags = access;
        set |= mask::ACCESS;
    }
    if args.has("sqd_event") {
        attr.en_sqd_async_notify = args.is_set("sqd_event")?.into();
        set |= mask::SQD_NOTIFY;
    }
    if args.has("path_mig") {
        attr.path_mig_state = args.named("path_mig", names::MIGRATION)?.cast_signed();
        set |= mask::PATH_MIG_STATE;
    }
    if let Some(dgid) = args.gid("alt_dgid")? {
        attr.alt_ah_attr = path_to(dgid, args, port, &gids()?)?;
        (attr.alt_port_num, attr.alt_timeout) = (attr.alt_ah_attr.port_num, args.or("alt_timeout", 14)?);
        set |= mask::ALT_PATH;
    }
    if let Some(path) = path(args, port, gids)? {
        attr.ah_attr = path;
        set |= mask::AV;
    } else if wanted & mask::AV != 0 {
        return Err(Refusal::invalid("dgid is missing"));
    }
    Ok((attr, set))
}

fn mtu(bytes: u32) -> Result<c_int> {
    let mtu = [256, 512, 1024, 2048, 4096].iter().zip(1..).find(|(known, _)| **known == bytes);
    mtu.map(|(_, mtu)| mtu).ok_or_else(|| Refusal::invalid("path_mtu must be 256, 512, 1024, 2048 or 4096"))
}

/// Returns the path to the argument `dgid`, if it is given. The path starts at the GID
/// `sgid_index`, by default at the first RoCE v2 GID of the same family and scope.
pub(super) fn path(
    args: &Args,
    port: u8,
    gids: impl FnOnce() -> Result<Vec<ibv_gid_entry>>,
) -> Result<Option<ibv_ah_attr>> {
    let Some(dgid) = args.gid("dgid")? else { return Ok(None) };
    let gids = if args.has("sgid_index") { Vec::new() } else { gids()? };
    path_to(dgid, args, port, &gids).map(Some)
}

fn path_to(dgid: [u8; 16], args: &Args, port: u8, gids: &[ibv_gid_entry]) -> Result<ibv_ah_attr> {
    let sgid_index = match args.optional("sgid_index")? {
        Some(index) => index,
        None => source(dgid, gids)?,
    };
    let grh = ibv_global_route {
        dgid: ibv_gid { raw: dgid },
        sgid_index,
        hop_limit: args.or("hop_limit", 64)?,
        traffic_class: args.or("traffic_class", 0)?,
        flow_label: args.or("flow_label", 0)?,
    };
    let (sl, port_num) = (args.or("sl", 0)?, args.or("port", port)?);
    Ok(ibv_ah_attr { grh, sl, is_global: 1, port_num, ..ibv_ah_attr::ZERO })
}

fn source(dgid: [u8; 16], gids: &[ibv_gid_entry]) -> Result<u8> {
    let is_link_local = |gid: &[u8; 16]| gid[..2] == [0xfe, 0x80];
    let fits = |entry: &&ibv_gid_entry| {
        let gid = entry.gid.raw;
        entry.gid_type == ROCE_V2
            && ipv4(&gid).is_some() == ipv4(&dgid).is_some()
            && is_link_local(&gid) == is_link_local(&dgid)
    };
    let found = gids.iter().find(fits).and_then(|entry| u8::try_from(entry.gid_index).ok());
    found.ok_or_else(|| {
        let dgid = Ipv6Addr::from(dgid);
        Refusal::invalid(format!("the port has no RoCE v2 GID of the family and scope of {dgid}; pass sgid_index"))
    })
}

/// Returns the IPv4 address in a GID. Multicast GIDs have it after `::ffff:` (RoCE v2) or
/// `ff0e::ffff:` (RoCE v1); the source address of both is an IPv4 address.
fn ipv4(gid: &[u8; 16]) -> Option<Ipv4Addr> {
    let ([0, 0] | [0xff, 0x0e]) = gid[..2] else { return None };
    let [a, b, c, d] = gid[12..] else { return None };
    (gid[2..12] == [0, 0, 0, 0, 0, 0, 0, 0, 255, 255]).then(|| Ipv4Addr::new(a, b, c, d))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(value: Value) -> Args {
        Args::new(crate::protocol::arguments(value).unwrap())
    }

    fn entry(gid: &str, gid_index: u32, gid_type: u32) -> ibv_gid_entry {
        let raw = gid.parse::<Ipv6Addr>().unwrap().octets();
        ibv_gid_entry { gid: ibv_gid { raw }, gid_index, gid_type, port_num: 1, ..ibv_gid_entry::ZERO }
    }

    #[test]
    fn multicast_gids_of_both_roce_versions_are_ipv4() {
        let address = |gid: &str| ipv4(&gid.parse::<Ipv6Addr>().unwrap().octets());
        let group = Some(Ipv4Addr::new(239, 1, 2, 3));
        assert_eq!([address("::ffff:239.1.2.3"), address("ff0e::ffff:239.1.2.3")], [group; 2]);
        assert_eq!([address("ff0e::1"), address("fe80::ffff:239.1.2.3")], [None; 2]);
    }

    #[test]
    fn required_attributes_have_defaults_unless_exact() {
        let gids = || Ok(vec![entry("::ffff:10.0.0.1", 1, ROCE_V2)]);
        let (attr, set) = modification(&args(json!({"to": "INIT"})), RC, 1, gids).unwrap();
        assert_eq!((attr.qp_state, attr.port_num, set), (1, 1, required(RC, INIT) | mask::STATE));
        let exact = json!({"to": "RTR", "exact": true, "rq_psn": 9});
        let (attr, set) = modification(&args(exact), RC, 1, gids).unwrap();
        assert_eq!((attr.rq_psn, set), (9, mask::STATE | mask::RQ_PSN));
        let alternate = json!({"path_mig": "REARM", "alt_dgid": "10.0.0.3", "alt_timeout": 9});
        let (attr, set) = modification(&args(alternate), RC, 2, gids).unwrap();
        assert_eq!((attr.path_mig_state, attr.alt_timeout, attr.alt_port_num), (1, 9, 2));
        assert_eq!((attr.alt_ah_attr.grh.sgid_index, set), (1, mask::PATH_MIG_STATE | mask::ALT_PATH));
        let rtr = json!({"to": "RTR", "dgid": "10.0.0.2", "path_mtu": 4096, "dest_qpn": 17});
        let (attr, set) = modification(&args(rtr), RC, 1, gids).unwrap();
        assert_eq!((attr.path_mtu, attr.dest_qp_num, attr.ah_attr.grh.sgid_index), (5, 17, 1));
        assert_eq!(set, required(RC, RTR) | mask::STATE);
        let text = modification(&args(json!({"to": "RTR"})), RC, 1, gids).err().map(|refusal| refusal.text);
        assert_eq!(text.as_deref(), Some("dgid is missing"));
    }

    #[test]
    fn path_starts_at_roce_v2_gid_of_same_family() {
        let gids = [
            entry("fe80::1", 0, ROCE_V2),
            entry("::ffff:10.0.0.1", 1, 1),
            entry("::ffff:10.0.0.1", 2, ROCE_V2),
            entry("fd77::1", 3, ROCE_V2),
        ];
        let from = |gid: &str| source(gid.parse::<Ipv6Addr>().unwrap().octets(), &gids);
        assert_eq!((from("::ffff:10.0.0.9"), from("fd77::9"), from("fe80::9")), (Ok(2), Ok(3), Ok(0)));
        assert_eq!(from("ff0e::ffff:239.1.1.1"), Ok(2));
        assert!(source([0; 16], &gids[..2]).is_err());
    }
}
