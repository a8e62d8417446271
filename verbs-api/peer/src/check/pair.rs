//! A queue pair on each card, connected to each other, with a region on each side.

use super::plan::{Family, Service};
use crate::client::{Client, ClientError};
use crate::protocol::Command;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv6Addr};

/// Bytes of each region: the longest message twice, to be sent from and to be received in, and what
/// must not be touched around it.
pub(super) const REGION: u64 = 4 << 20;
/// The Q_Key that datagrams bear, and queue pairs ask for.
pub(super) const QKEY: u32 = 0x1234_5678;
const RIGHTS: &str = "LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ|REMOTE_ATOMIC";

/// Why there is no pair.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// One of the cards has no such address, MTU or service.
    #[error("{0}")]
    Unsupported(String),
    /// An agent refused something that every card can do, or is gone.
    #[error(transparent)]
    Agent(#[from] ClientError),
}

/// One side of a pair.
pub(super) struct End<'a> {
    pub(super) client: &'a mut Client,
    pub(super) qp: u64,
    pub(super) qpn: u64,
    pub(super) cq: u64,
    pub(super) mr: u64,
    pub(super) addr: u64,
    pub(super) rkey: u64,
    /// The way to the other side, if datagrams go it.
    pub(super) ah: Option<u64>,
    gid: String,
    gid_index: u64,
}

/// Both sides: near, far.
pub struct Pair<'a> {
    pub(super) ends: [End<'a>; 2],
}

/// A number of an answer.
pub(super) fn number(value: &Value, name: &str) -> Result<u64, ClientError> {
    value[name].as_u64().ok_or_else(|| ClientError::Protocol(format!("no number {name} in {value}")))
}

impl<'a> Pair<'a> {
    /// Connects a new queue pair of each card. What an earlier pair has left there goes.
    ///
    /// # Errors
    /// [`PairError::Unsupported`] if one of the cards cannot have such a pair.
    pub fn connect(
        near: &'a mut Client,
        far: &'a mut Client,
        (service, mtu, family): (Service, u32, Family),
    ) -> Result<Self, PairError> {
        let mut ends = [End::make(near, service, mtu, family)?, End::make(far, service, mtu, family)?];
        let dests = [1, 0].map(|other: usize| (ends[other].gid.clone(), ends[other].qpn));
        for (end, (gid, qpn)) in ends.iter_mut().zip(dests) {
            end.connect(service, mtu, &gid, qpn)?;
        }
        Ok(Self { ends })
    }
}

impl<'a> End<'a> {
    fn make(client: &'a mut Client, service: Service, mtu: u32, family: Family) -> Result<Self, PairError> {
        client.call(Command::Reset, Value::Null)?;
        let active_mtu = number(&client.card()["port"], "active_mtu")?;
        if u64::from(mtu) > active_mtu {
            return Err(PairError::Unsupported(format!("{} has an MTU of {active_mtu}", client.name())));
        }
        let no_gid = || PairError::Unsupported(format!("{} has no RoCE v2 GID of that family", client.name()));
        let (gid, gid_index) = gid(client.card(), family).ok_or_else(no_gid)?;
        let mr = client.call(Command::Reg, json!({"length": REGION, "access": RIGHTS}))?;
        let made =
            client.call(Command::CreateQp, json!({"type": service.name(), "max_send_wr": 16, "max_recv_wr": 16}));
        let qp = made.map_err(|error| match error.errno() {
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => PairError::Unsupported(error.to_string()),
            _ => error.into(),
        })?;
        Ok(Self {
            qp: number(&qp, "qp")?,
            qpn: number(&qp, "qpn")?,
            cq: number(&qp, "cq")?,
            mr: number(&mr, "mr")?,
            addr: number(&mr, "addr")?,
            rkey: number(&mr, "rkey")?,
            ah: None,
            client,
            gid,
            gid_index,
        })
    }

    fn connect(&mut self, service: Service, mtu: u32, gid: &str, qpn: u64) -> Result<(), ClientError> {
        let qp = self.qp;
        let init = match service {
            Service::Ud => json!({"qp": qp, "to": "INIT", "qkey": QKEY}),
            _ => json!({"qp": qp, "to": "INIT", "access": RIGHTS}),
        };
        self.client.call(Command::ModifyQp, init)?;
        let path = json!({"dgid": gid, "sgid_index": self.gid_index});
        if service == Service::Ud {
            self.client.call(Command::ModifyQp, json!({"qp": qp, "to": "RTR"}))?;
            self.ah = Some(number(&self.client.call(Command::CreateAh, path)?, "ah")?);
        } else {
            let mut rtr = json!({"qp": qp, "to": "RTR", "path_mtu": mtu, "dest_qpn": qpn, "rq_psn": 0xff_fff0});
            for name in ["dgid", "sgid_index"] {
                rtr[name] = path[name].clone();
            }
            self.client.call(Command::ModifyQp, rtr)?;
        }
        // The PSNs of every pair go through 0 soon.
        self.client.call(Command::ModifyQp, json!({"qp": qp, "to": "RTS", "sq_psn": 0xff_fff0}))?;
        Ok(())
    }
}

/// The first RoCE v2 GID of this family that another host can reach, and its index.
fn gid(card: &Value, family: Family) -> Option<(String, u64)> {
    card["gids"].as_array()?.iter().filter(|gid| gid["type"] == "RoCE v2").find_map(|gid| {
        let text = gid["gid"].as_str()?;
        let address: Ipv6Addr = text.parse().ok()?;
        let is_v4 = matches!(address.to_canonical(), IpAddr::V4(_));
        let fits = is_v4 == (family == Family::V4) && !address.is_unicast_link_local();
        fits.then_some((text.to_owned(), gid["index"].as_u64()?))
    })
}
