//! Making, changing and destroying objects.

use super::attributes::{modification, path};
use super::card::mtu_bytes;
use super::table::Object;
use super::{Session, data};
use crate::protocol::{Args, Refusal, Result, from_hex, limits, names};
use crate::verbs::{Ah, Cq, Mr, Mw, Pd, Qp, QpInit, Srq, Xrcd};
use roxe_abi::{ibv_mw_bind_info, ibv_qp_attr, ibv_qp_cap};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::rc::Rc;

/// Entries of a completion queue, and requests of a queue, if nothing is said.
const DEFAULT_ENTRIES: u32 = 64;
/// What `query_qp` asks for: `IBV_QP_STATE` to `IBV_QP_DEST_QPN`.
const ALL_ATTRIBUTES: u32 = (1 << 21) - 1;

impl Session {
    pub(super) fn reg(&mut self, args: &Args) -> Result<Value> {
        let length: usize = args.number("length")?;
        self.table.has_room(length)?;
        if length == 0 {
            return Err(Refusal::invalid("length is 0"));
        }
        let access = args.flags("access", names::ACCESS)?.unwrap_or(0);
        let mr = Rc::new(Mr::register(&self.pd(args)?, length, access, &fill(args)?)?);
        let (addr, lkey, rkey) = (mr.addr(0, length)?, mr.lkey(), mr.rkey());
        Ok(json!({"mr": self.table.insert(Object::Mr(mr)), "addr": addr, "lkey": lkey, "rkey": rkey}))
    }

    pub(super) fn alloc_pd(&mut self) -> Result<Value> {
        self.table.has_room(0)?;
        let pd = Rc::new(Pd::alloc(&self.context)?);
        Ok(json!({"pd": self.table.insert(Object::Pd(pd))}))
    }

    fn new_cq(&mut self, entries: u32) -> Result<(u64, Rc<Cq>)> {
        self.table.has_room(0)?;
        let cq = Rc::new(Cq::create(&self.context, entries)?);
        Ok((self.table.insert(Object::Cq(Rc::clone(&cq))), cq))
    }

    pub(super) fn create_cq(&mut self, args: &Args) -> Result<Value> {
        let (handle, cq) = self.new_cq(entries(args, "cqe")?)?;
        Ok(json!({"cq": handle, "cqe": cq.cqe()}))
    }

    pub(super) fn create_srq(&mut self, args: &Args) -> Result<Value> {
        self.table.has_room(0)?;
        let (max_wr, max_sge) = (entries(args, "max_wr")?, args.or("max_sge", 1)?);
        let pd = self.pd(args)?;
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
        self.table.has_room(0)?;
        let xrcd = Rc::new(Xrcd::open(&self.context)?);
        Ok(json!({"xrcd": self.table.insert(Object::Xrcd(xrcd))}))
    }

    pub(super) fn create_qp(&mut self, args: &Args) -> Result<Value> {
        self.table.has_room(0)?;
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
            None => self.new_cq(max_send_wr.saturating_add(max_recv_wr))?,
        };
        let (recv_handle, recv_cq) = match args.optional("recv_cq")? {
            Some(handle) => (handle, self.table.cq(handle)?),
            None => (cq, Rc::clone(&send_cq)),
        };
        let xrcd = args.optional("xrcd")?.map(|handle| self.table.xrcd(handle)).transpose()?;
        let init = QpInit { kind, send_cq, recv_cq, srq, xrcd, cap, sig_all: args.is_set("sig_all")? };
        let qp = Rc::new(Qp::create(&pd, init)?);
        let number = qp.number();
        Ok(json!({"qp": self.table.insert(Object::Qp(qp)), "qpn": number, "cq": cq, "recv_cq": recv_handle}))
    }

    pub(super) fn modify_qp(&mut self, args: &Args) -> Result<()> {
        let qp = self.table.qp(args.number("qp")?)?;
        let (attr, mask) = modification(args, qp.kind(), self.port, || self.gids())?;
        qp.modify(attr, mask)
    }

    pub(super) fn query_qp(&mut self, args: &Args) -> Result<Value> {
        let qp = self.table.qp(args.number("qp")?)?;
        Ok(qp_values(&qp.query(ALL_ATTRIBUTES)?))
    }

    pub(super) fn create_ah(&mut self, args: &Args) -> Result<Value> {
        self.table.has_room(0)?;
        let attr = path(args, self.port, || self.gids())?;
        let attr = attr.ok_or_else(|| Refusal::invalid("dgid is missing"))?;
        let ah = Rc::new(Ah::create(&self.pd(args)?, attr)?);
        Ok(json!({"ah": self.table.insert(Object::Ah(ah))}))
    }

    pub(super) fn alloc_mw(&mut self, args: &Args) -> Result<Value> {
        self.table.has_room(0)?;
        let kind: u32 = args.or("type", 1)?;
        if !(1..=2).contains(&kind) {
            return Err(Refusal::invalid("type is 1 or 2"));
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
            return self.hear(handle, group);
        }
        self.memberships.remove(&(handle, group));
        Ok(())
    }

    /// Makes the interface of the card take the packets of a group of IPv4: the kernel's rxe gets
    /// what the host has joined, as programs do by `rdma_join_multicast`.
    fn hear(&mut self, qp: u64, group: [u8; 16]) -> Result<()> {
        let IpAddr::V4(address) = IpAddr::V6(Ipv6Addr::from(group)).to_canonical() else { return Ok(()) };
        let gids = self.gids()?;
        let ours = gids.iter().find_map(|entry| match IpAddr::V6(Ipv6Addr::from(entry.gid.raw)).to_canonical() {
            IpAddr::V4(ours) if address.is_multicast() => Some(ours),
            _ => None,
        });
        let Some(ours) = ours else { return Ok(()) };
        let joined = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
        let joined = joined.and_then(|socket| socket.join_multicast_v4(&address, &ours).map(|()| socket));
        let refused = |error| Refusal::os(format_args!("cannot join {address}"), &error);
        self.memberships.insert((qp, group), joined.map_err(refused)?);
        Ok(())
    }
}

/// A number of entries, within what the agent allows.
fn entries(args: &Args, name: &str) -> Result<u32> {
    let entries = args.or(name, DEFAULT_ENTRIES)?;
    if entries > limits::QUEUE {
        return Err(Refusal::invalid(format!("{name} is at most {}", limits::QUEUE)));
    }
    Ok(entries)
}

/// What new memory is filled with: a byte as a number, or bytes as a text; zeros if nothing is
/// said.
fn fill(args: &Args) -> Result<Vec<u8>> {
    let bytes = match args.object().get("fill") {
        Some(Value::String(text)) => from_hex(text).filter(|bytes| !bytes.is_empty()),
        _ => Some(vec![args.or("fill", 0)?]),
    };
    bytes.ok_or_else(|| Refusal::invalid("fill is a byte as a number, or bytes as a hexadecimal text"))
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
        "rnr_retry": attr.rnr_retry,
    })
}
