//! Connects queue pairs of two cards.

use super::memory::{AREA_LEN, send_all};
use super::{Clients, Family, PairError, PairKind};
use crate::client::{Client, ClientError};
use crate::plan::Service;
use crate::protocol::Command;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv6Addr};

pub(super) const MAX_INLINE: u32 = 64;
pub(super) const QKEY: u32 = 0x1234_5678;
const RIGHTS: &str = "LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ|REMOTE_ATOMIC";
/// First PSN of every queue pair: close to 2^24, so that PSNs wrap soon.
const FIRST_PSN: u32 = 0xff_fff0;

fn number(value: &Value, name: &str) -> Result<u64, ClientError> {
    value[name].as_u64().ok_or_else(|| ClientError::Protocol(format!("the number {name} is missing in {value}")))
}

/// One side of a pair: its area, and its queue pair.
#[derive(Debug, Default)]
pub(super) struct End {
    pub(super) mr: u64,
    pub(super) addr: u64,
    pub(super) rkey: u64,
    pub(super) gid: String,
    gid_index: u64,
    pub(super) qp: u64,
    pub(super) qpn: u64,
    pub(super) send_cq: u64,
    pub(super) recv_cq: u64,
    /// Path to the other side, for datagrams.
    pub(super) ah: Option<u64>,
}

impl End {
    fn register(client: &mut Client) -> Result<Self, ClientError> {
        let mr = client.call(Command::Reg, json!({"length": AREA_LEN, "access": RIGHTS}))?;
        let (mr, addr, rkey) = (number(&mr, "mr")?, number(&mr, "addr")?, number(&mr, "rkey")?);
        Ok(Self { mr, addr, rkey, ..Self::default() })
    }

    fn destroy_queue_pair(&mut self, client: &mut Client) -> Result<(), ClientError> {
        let handles =
            [("qp", self.qp), ("ah", self.ah.take().unwrap_or(0)), ("cq", self.send_cq), ("cq", self.recv_cq)];
        for (kind, handle) in handles.into_iter().filter(|(_, handle)| *handle != 0) {
            client.ask(Command::Destroy, json!({"kind": kind, "handle": handle}))?;
        }
        (self.qp, self.send_cq, self.recv_cq) = (0, 0, 0);
        send_all(client)
    }

    fn create_queue_pair(&mut self, client: &mut Client, (service, mtu, family): PairKind) -> Result<(), PairError> {
        let unsupported = |what: String| PairError::Unsupported(format!("{} has {what}", client.name()));
        let active_mtu = number(&client.card()["port"], "active_mtu")?;
        if u64::from(mtu) > active_mtu {
            return Err(unsupported(format!("an MTU of {active_mtu}")));
        }
        let gid = gid(client.card(), family);
        (self.gid, self.gid_index) = gid.ok_or_else(|| unsupported("no RoCE v2 GID of that family".to_owned()))?;
        self.send_cq = number(&client.call(Command::CreateCq, json!({"cqe": 64}))?, "cq")?;
        self.recv_cq = number(&client.call(Command::CreateCq, json!({"cqe": 64}))?, "cq")?;
        let created = client.call(
            Command::CreateQp,
            json!({"type": service.name(), "cq": self.send_cq, "recv_cq": self.recv_cq, "max_send_wr": 64,
                   "max_recv_wr": 32, "max_sge": 3, "max_inline": MAX_INLINE}),
        );
        let qp = created.map_err(|error| match error.errno() {
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => PairError::Unsupported(error.to_string()),
            _ => error.into(),
        })?;
        (self.qp, self.qpn) = (number(&qp, "qp")?, number(&qp, "qpn")?);
        Ok(())
    }

    fn connect(
        &mut self,
        client: &mut Client,
        kind: PairKind,
        ack_timeout: u8,
        gid: &str,
        qpn: u64,
    ) -> Result<(), ClientError> {
        let ((service, mtu, _), qp) = (kind, self.qp);
        let limit = |name: &str| client.card()["limits"][name].as_u64().unwrap_or(1).clamp(1, 4);
        let reads = limit("max_qp_rd_atom").min(limit("max_qp_init_rd_atom"));
        let (is_datagram, is_reliable) = (service == Service::Ud, service == Service::Rc);
        // The client leaves out null members.
        let given_if = |is_set: bool, value: Value| if is_set { value } else { Value::Null };
        let access = if is_reliable { RIGHTS } else { "LOCAL_WRITE|REMOTE_WRITE" };
        let steps = [
            json!({"qp": qp, "to": "INIT", "qkey": given_if(is_datagram, QKEY.into()),
                   "access": given_if(!is_datagram, access.into())}),
            // Receives are posted before the peer sends, so only injected faults cause RNR NAKs.
            json!({"qp": qp, "to": "RTR", "path_mtu": given_if(!is_datagram, mtu.into()),
                   "dest_qpn": given_if(!is_datagram, qpn.into()), "rq_psn": given_if(!is_datagram, FIRST_PSN.into()),
                   "dgid": given_if(!is_datagram, gid.into()), "sgid_index": given_if(!is_datagram, self.gid_index.into()),
                   "max_dest_rd_atomic": given_if(is_reliable, reads.into()), "min_rnr_timer": given_if(is_reliable, 1.into())}),
            json!({"qp": qp, "to": "RTS", "sq_psn": FIRST_PSN, "timeout": given_if(is_reliable, ack_timeout.into()),
                   "max_rd_atomic": given_if(is_reliable, reads.into())}),
        ];
        for step in steps {
            client.ask(Command::ModifyQp, step)?;
        }
        send_all(client)?;
        if is_datagram {
            let ah = client.call(Command::CreateAh, json!({"dgid": gid, "sgid_index": self.gid_index}))?;
            self.ah = Some(number(&ah, "ah")?);
        }
        Ok(())
    }
}

/// Returns the first RoCE v2 GID of `family` that other hosts can reach, and its index.
fn gid(card: &Value, family: Family) -> Option<(String, u64)> {
    card["gids"].as_array()?.iter().filter(|gid| gid["type"] == "RoCE v2").find_map(|gid| {
        let text = gid["gid"].as_str()?;
        let address: Ipv6Addr = text.parse().ok()?;
        let is_v4 = matches!(address.to_canonical(), IpAddr::V4(_));
        let fits = is_v4 == (family == Family::V4) && !address.is_unicast_link_local();
        fits.then_some((text.to_owned(), gid["index"].as_u64()?))
    })
}

/// Two connected queue pairs, near and far. Checks of one kind share the queue pairs as long as the
/// checks pass.
#[derive(Debug)]
pub struct Pair {
    kind: Option<PairKind>,
    pub(super) ends: [End; 2],
    /// True if the queue pairs have failed or may still receive late packets.
    pub(super) is_spent: bool,
    /// Number of cells so far, which is the upper half of every wr_id.
    pub(super) cells: u64,
}

impl Pair {
    /// Registers an area on each side; the first check creates the queue pairs. Fails if an agent
    /// refuses the request, or its connection is lost.
    pub fn register([near, far]: &mut Clients<'_>) -> Result<Self, ClientError> {
        Ok(Self { kind: None, ends: [End::register(near)?, End::register(far)?], is_spent: true, cells: 0 })
    }

    /// Connects new queue pairs, unless the queue pairs of the last check are of `kind` and usable.
    pub(super) fn renew(
        &mut self,
        clients: &mut Clients<'_>,
        kind: PairKind,
        ack_timeout: u8,
    ) -> Result<(), PairError> {
        if !self.is_spent && self.kind == Some(kind) {
            return Ok(());
        }
        for (end, client) in self.ends.iter_mut().zip(clients.iter_mut()) {
            end.destroy_queue_pair(client)?;
        }
        for (end, client) in self.ends.iter_mut().zip(clients.iter_mut()) {
            end.create_queue_pair(client, kind)?;
        }
        let others = [1, 0].map(|other: usize| (self.ends[other].gid.clone(), self.ends[other].qpn));
        for ((end, client), (gid, qpn)) in self.ends.iter_mut().zip(clients.iter_mut()).zip(&others) {
            end.connect(client, kind, ack_timeout, gid, *qpn)?;
        }
        self.kind = Some(kind);
        Ok(())
    }
}
