//! What the card is: its device, port, GIDs, limits and counters; asynchronous events.

use super::{Session, deadline};
use crate::protocol::{Args, Result, VERSION, limits, names};
use crate::verbs::EventSource;
use roxe_abi::{ibv_device_attr, ibv_gid_entry, ibv_port_attr};
use serde_json::{Map, Value, json};
use std::fs;
use std::io::Read as _;
use std::net::Ipv6Addr;

/// `IBV_GID_TYPE_ROCE_V2`.
pub(super) const ROCE_V2: u32 = 2;
/// Files of counters that are read, and bytes of each.
const COUNTERS: (usize, u64) = (256, 64);

impl Session {
    pub(super) fn hello(&self) -> Result<Value> {
        let attr = self.context.device_attr()?;
        let port = self.context.port_attr(self.port)?;
        let gids: Vec<_> = self
            .gids()?
            .iter()
            .map(|entry| {
                let kind = ["IB", "RoCE v1", "RoCE v2"].get(entry.gid_type as usize).copied().unwrap_or("other");
                json!({"index": entry.gid_index, "gid": Ipv6Addr::from(entry.gid.raw).to_string(), "type": kind})
            })
            .collect();
        Ok(json!({
            "device": self.context.name,
            "port": port_info(self.port, &port),
            "gids": gids,
            "limits": device_limits(&attr),
            "version": env!("CARGO_PKG_VERSION"),
            "protocol": VERSION,
        }))
    }

    /// The GIDs of the port of this session.
    pub(super) fn gids(&self) -> Result<Vec<ibv_gid_entry>> {
        let mut gids = self.context.gids()?;
        gids.retain(|entry| entry.port_num == u32::from(self.port));
        Ok(gids)
    }

    pub(super) fn counters(&self) -> Result<Value> {
        let folder = self.context.folder.join("ports").join(self.port.to_string()).join("hw_counters");
        let files = fs::read_dir(&folder).into_iter().flatten().flatten().take(COUNTERS.0);
        let counters: Map<_, _> = files
            .filter_map(|file| {
                let mut text = String::new();
                fs::File::open(file.path()).ok()?.take(COUNTERS.1).read_to_string(&mut text).ok()?;
                Some((file.file_name().into_string().ok()?, text.trim().parse::<u64>().ok()?.into()))
            })
            .collect();
        Ok(Value::Object(counters))
    }

    pub(super) fn events(&self, args: &Args) -> Result<Value> {
        let mut until = deadline(args)?;
        let mut events = Vec::new();
        while events.len() < limits::RESULTS {
            let Some(event) = self.context.event(until)? else { break };
            // One was waited for, the others are those that have come meanwhile.
            until = std::time::Instant::now();
            let mut value = json!({"type": names::name(names::EVENTS, event.number)});
            match event.source {
                EventSource::Object(kind, address) => value[kind] = self.table.at(kind, address).into(),
                EventSource::Port(port) => value["port"] = port.into(),
                EventSource::Device => {}
            }
            events.push(value);
        }
        Ok(json!({ "events": events }))
    }
}

fn port_info(number: u8, port: &ibv_port_attr) -> Value {
    let states = ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"];
    let state = usize::try_from(port.state).ok().and_then(|state| states.get(state)).copied().unwrap_or("other");
    json!({
        "number": number, "state": state, "active_mtu": mtu_bytes(port.active_mtu),
        "max_mtu": mtu_bytes(port.max_mtu), "gid_tbl_len": port.gid_tbl_len, "max_msg_sz": port.max_msg_sz,
        "pkey_tbl_len": port.pkey_tbl_len, "lid": port.lid,
        "link_layer": if port.link_layer == 2 { "Ethernet" } else { "InfiniBand" },
    })
}

/// The bytes of an `enum ibv_mtu`; 0 if it is none.
pub(super) fn mtu_bytes(mtu: i32) -> u32 {
    if (1..=5).contains(&mtu) { 128 << mtu } else { 0 }
}

fn device_limits(attr: &ibv_device_attr) -> Value {
    json!({
        "vendor_id": attr.vendor_id, "vendor_part_id": attr.vendor_part_id, "hw_ver": attr.hw_ver,
        "max_mr_size": attr.max_mr_size, "max_qp": attr.max_qp, "max_qp_wr": attr.max_qp_wr,
        "max_sge": attr.max_sge, "max_sge_rd": attr.max_sge_rd, "max_cq": attr.max_cq,
        "max_cqe": attr.max_cqe, "max_mr": attr.max_mr, "max_pd": attr.max_pd,
        "max_qp_rd_atom": attr.max_qp_rd_atom, "max_qp_init_rd_atom": attr.max_qp_init_rd_atom,
        "max_res_rd_atom": attr.max_res_rd_atom, "atomic_cap": attr.atomic_cap, "max_mw": attr.max_mw,
        "max_ah": attr.max_ah, "max_srq": attr.max_srq, "max_srq_wr": attr.max_srq_wr,
        "max_srq_sge": attr.max_srq_sge, "max_mcast_grp": attr.max_mcast_grp, "max_pkeys": attr.max_pkeys,
        "device_cap_flags": attr.device_cap_flags, "local_ca_ack_delay": attr.local_ca_ack_delay,
    })
}
