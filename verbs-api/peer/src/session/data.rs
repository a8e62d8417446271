//! Commands that post, poll, and access memory.

use super::{Session, deadline};
use crate::protocol::{Args, Refusal, Result, limits, names, to_hex, to_runs};
use crate::verbs::{Entry, Segment};
use roxe_abi::{ibv_ops_wr, ibv_send_wr, ops_tm, ops_tm_add, wr_atomic, wr_rdma, wr_ud, wr_union};
use serde_json::{Value, json};
use std::time::Instant;

/// `IBV_QPT_UD`.
const QPT_UD: u32 = 4;
/// `IBV_SEND_SIGNALED`.
const SEND_SIGNALED: u32 = 2;
/// `IBV_SEND_INLINE`.
const SEND_INLINE: u32 = 8;
/// `IBV_WC_WITH_IMM`.
const WC_WITH_IMM: u32 = 2;
/// `IBV_WC_WITH_INV`.
const WC_WITH_INV: u32 = 8;
/// `IBV_OPS_SIGNALED`.
const OPS_SIGNALED: i32 = 1;
/// `IBV_OPS_TM_SYNC`.
const OPS_TM_SYNC: i32 = 2;

/// The members of a segment: `mr` with `offset`, or `addr` and `lkey`, which may be invalid on
/// purpose.
const SEGMENT: &[&str] = &["mr", "offset", "length", "addr", "lkey"];

impl Session {
    /// Returns the segments of a request. Segments of inline data must be parts of regions, because
    /// the library itself reads them.
    fn segments(&self, args: &Args, is_inline: bool) -> Result<Vec<Segment>> {
        let list = args.objects("sge", SEGMENT)?;
        if list.len() > limits::SEGMENTS {
            return Err(Refusal::invalid(format!("a request can have at most {} segments", limits::SEGMENTS)));
        }
        list.iter()
            .map(|item| {
                let length: u32 = item.number("length")?;
                let Some(handle) = item.optional("mr")? else {
                    if is_inline {
                        return Err(Refusal::invalid("inline data must be in a region, or in inline_data"));
                    }
                    return Ok(Segment { addr: item.number("addr")?, length, lkey: item.number("lkey")? });
                };
                if item.has("addr") {
                    return Err(Refusal::invalid("a segment has either mr or addr, not both"));
                }
                let mr = self.table.mr(handle)?;
                let addr = mr.addr(item.or("offset", 0)?, length as usize)?;
                Ok(Segment { addr, length, lkey: item.or("lkey", mr.lkey())? })
            })
            .collect()
    }

    pub(super) fn post_send(&mut self, args: &Args) -> Result<()> {
        let qp = self.table.qp(args.number("qp")?)?;
        let (opcode, mut send_flags) = (args.named("opcode", names::SEND_OPCODES)?, send_flags(args)?);
        let inline = args.bytes("inline_data")?;
        if let Some(bytes) = &inline {
            if args.has("sge") {
                return Err(Refusal::invalid("a request has either inline_data or sge, not both"));
            }
            if bytes.len() > limits::TRANSFER {
                return Err(Refusal::invalid(format!("inline_data must have at most {} bytes", limits::TRANSFER)));
            }
        }
        let is_datagram = qp.kind() == QPT_UD;
        let path = is_datagram.then(|| self.table.ah(args.number("ah")?)).transpose()?;
        let wr = if is_datagram {
            let (remote_qpn, remote_qkey) = (args.number("remote_qpn")?, args.or("remote_qkey", 0)?);
            wr_union { ud: wr_ud { remote_qpn, remote_qkey, ..wr_ud::ZERO } }
        } else {
            let (remote_addr, rkey) = (args.or("remote_addr", 0)?, args.or("rkey", 0)?);
            let (compare_add, swap) = (args.or("compare_add", 0)?, args.or("swap", 0)?);
            match opcode {
                // `IBV_WR_ATOMIC_CMP_AND_SWP` and `IBV_WR_ATOMIC_FETCH_AND_ADD`.
                5 | 6 => wr_union { atomic: wr_atomic { remote_addr, compare_add, swap, rkey } },
                _ => wr_union { rdma: wr_rdma { remote_addr, rkey } },
            }
        };
        // One field of the work request holds either immediate data in network byte order or a key.
        let imm_data = match args.optional("invalidate_rkey")? {
            Some(key) => key,
            None => args.or::<u32>("imm", 0)?.to_be(),
        };
        let mut segments = self.segments(args, send_flags & SEND_INLINE != 0)?;
        if let Some(bytes) = &inline {
            segments.push(Segment { addr: bytes.as_ptr().addr() as u64, length: bytes.len() as u32, lkey: 0 });
            send_flags |= SEND_INLINE;
        }
        let (wr_id, remote_srqn) = (args.or("wr_id", 0)?, args.or("remote_srqn", 0)?);
        let request = ibv_send_wr { wr_id, opcode, send_flags, imm_data, wr, remote_srqn, ..ibv_send_wr::ZERO };
        qp.post_send(request, &segments, path.as_deref())
    }

    pub(super) fn post_recv(&mut self, args: &Args) -> Result<()> {
        let (wr_id, segments) = (args.or("wr_id", 0)?, self.segments(args, false)?);
        match (args.optional("qp")?, args.optional("srq")?) {
            (Some(handle), None) => self.table.qp(handle)?.post_recv(wr_id, &segments),
            (None, Some(handle)) => self.table.srq(handle)?.post_recv(wr_id, &segments),
            _ => Err(Refusal::invalid("a receive needs either qp or srq")),
        }
    }

    /// Posts a signaled operation on the tags of a shared receive queue.
    pub(super) fn post_tag(&mut self, args: &Args) -> Result<Value> {
        let (srq, operation) = (self.table.srq(args.number("srq")?)?, args.named("op", names::TAG_OPERATIONS)?);
        let add = ops_tm_add {
            recv_wr_id: args.or("recv_wr_id", 0)?,
            tag: args.or("tag", 0)?,
            mask: args.or("mask", u64::MAX)?,
            ..ops_tm_add::ZERO
        };
        let unexpected: Option<u32> = args.optional("unexpected")?;
        let tm = ops_tm { unexpected_cnt: unexpected.unwrap_or(0), handle: args.or("handle", 0)?, add };
        let flags = if unexpected.is_some() { OPS_SIGNALED | OPS_TM_SYNC } else { OPS_SIGNALED };
        let opcode = operation.cast_signed();
        let request = ibv_ops_wr { wr_id: args.or("wr_id", 0)?, opcode, flags, tm, ..ibv_ops_wr::ZERO };
        let handle = srq.post_tag(request, &self.segments(args, false)?)?;
        Ok(json!({ "handle": handle }))
    }

    /// Polls until there are `min` completions or the timeout has passed. Between polls the thread
    /// sleeps until the queue raises an event.
    pub(super) fn poll(&mut self, args: &Args) -> Result<Value> {
        let cq = self.table.cq(args.number("cq")?)?;
        let max = args.or("max", 16)?.clamp(1, limits::RESULTS);
        let min = args.or("min", 1)?.min(max);
        let until = deadline(args)?;
        let mut entries = cq.poll(max)?;
        while entries.len() < min && Instant::now() < until {
            cq.notify(false)?;
            // Completions that were queued before `notify` raise no event.
            let more = cq.poll(max - entries.len())?;
            if more.is_empty() {
                cq.event(until)?;
            }
            entries.extend(more);
        }
        let completions: Vec<_> = entries.iter().map(completion).collect();
        Ok(json!({ "completions": completions }))
    }

    pub(super) fn cq_event(&mut self, args: &Args) -> Result<Value> {
        let fired = self.table.cq(args.number("cq")?)?.event(deadline(args)?)?;
        Ok(json!({ "fired": fired }))
    }

    pub(super) fn read(&mut self, args: &Args) -> Result<Value> {
        let bytes = self.table.mr(args.number("mr")?)?.read(args.or("offset", 0)?, transfer(args)?)?;
        Ok(if args.is_set("runs")? { json!({"runs": to_runs(&bytes)}) } else { json!({"hex": to_hex(&bytes)}) })
    }

    pub(super) fn write(&mut self, args: &Args) -> Result<()> {
        let bytes = match (args.bytes("hex")?, args.optional("fill")?) {
            (Some(bytes), None) => bytes,
            (None, Some(fill)) => vec![fill; transfer(args)?],
            _ => return Err(Refusal::invalid("write needs either hex, or fill and length")),
        };
        self.table.mr(args.number("mr")?)?.write(args.or("offset", 0)?, &bytes)
    }
}

/// Returns the number of bytes that a request reads or fills.
fn transfer(args: &Args) -> Result<usize> {
    let length = args.number("length")?;
    if length > limits::TRANSFER {
        return Err(Refusal::invalid(format!("length must be at most {}", limits::TRANSFER)));
    }
    Ok(length)
}

/// Returns the flags of a send; `SIGNALED` by default.
pub(super) fn send_flags(args: &Args) -> Result<u32> {
    Ok(args.flags("flags", names::SEND_FLAGS)?.unwrap_or(SEND_SIGNALED))
}

/// Returns a completion as JSON. A failed completion defines only wr_id, status, QP number and
/// vendor error.
fn completion(entry: &Entry) -> Value {
    let wc = &entry.wc;
    let mut value = json!({
        "wr_id": wc.wr_id,
        "status": names::name(names::WC_STATUSES, wc.status),
        "qpn": wc.qp_num,
        "vendor_err": wc.vendor_err,
    });
    if wc.status == 0 {
        value["opcode"] = names::name(names::WC_OPCODES, wc.opcode).into();
        value["byte_len"] = wc.byte_len.into();
        value["src_qp"] = wc.src_qp.into();
        value["flags"] = names::flags(names::WC_FLAGS, wc.wc_flags).into();
        if wc.wc_flags & WC_WITH_IMM != 0 {
            value["imm"] = u32::from_be(wc.imm_data).into();
        }
        if wc.wc_flags & WC_WITH_INV != 0 {
            value["invalidated_rkey"] = wc.imm_data.into();
        }
        if let Some(matched) = &entry.matched {
            (value["tag"], value["context"]) = (matched.tag.into(), matched.priv_.into());
        }
    }
    value
}
