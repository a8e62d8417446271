//! A target behind an agent: verbs of the far side are commands over TCP (`roxe_peer`), and packets
//! of the near side go through a UDP socket of this host.
//!
//! Both ends of RoCEv2 use the same port, so the near side needs an address of its own: on the
//! card's host, another loopback address.
//!
//! When pipelined (`Target::pipeline`), objects are reused, and commands without a result are sent
//! together with the next command that has a result, or before the next packet.

mod sockets;

use crate::target::{
    Answer, Attributes, Bound, Card, Change, Completed, ConnParam, ConnectionEvent, Datagram, Event, Extensions,
    FarSide, Handle, NewQp, Piece, QUERIED, REPORTED, Refused, Region, Snapshot, Source, TagWork, Target, Work,
};
use roxe_net::udp::max_payload;
use roxe_peer::client::{self, Client, ClientError};
use roxe_peer::protocol::{Command, from_hex, from_runs, names, to_hex};
use roxe_wire::{Gid, ROCE_PORT};
use serde_json::{Value, json};
use sockets::{FIRST_QPN, QPN_RANGE, QPNS_PER_CASE, Sockets};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime};

/// Maximum time that a packet waits in the socket before this process runs.
const JITTER: Duration = Duration::from_millis(3);
/// Maximum number of commands in one message.
const MAX_PENDING: usize = 128;
/// `IBV_ACCESS_FLUSH_GLOBAL`: in Linux since 6.2, and in few cards.
const FLUSH_GLOBAL: u32 = 1 << 8;
/// Renewals after which all objects are freed, because the agent limits the number of objects.
const MAX_RENEWALS: u32 = 64;
/// Number of queue pairs that cannot be reused at which all objects are freed.
const MAX_UNREUSABLE: usize = 512;

/// A card that an agent drives.
pub struct AgentCard {
    client: Client,
    cards: Vec<Card>,
    sockets: Sockets,
    start: Instant,
    /// The near side of the current case.
    near: Gid,
    first_near: u32,
    /// Address handles by destination, traffic class and hop limit.
    handles: BTreeMap<([u8; 16], [u8; 2]), Handle>,
    is_pipelined: bool,
    pools: Pools,
    /// Queue pairs of the current case that cannot be reused, because they use objects such as an
    /// SRQ, which keeps its receives.
    unreusable: Vec<Handle>,
    /// Number of such queue pairs of earlier cases.
    old_unreusable: usize,
    renewals: u32,
    /// For each command that is sent but not answered, true if a refusal is an error.
    pending: Vec<bool>,
}

impl AgentCard {
    /// Connects to the agent. `near` are addresses of this host for the near side; by default the
    /// source address of the route to the card, or the next addresses of a card on loopback. Fails
    /// if the agent does not respond or refuses, or if no address of this host is usable.
    pub fn connect(target: &client::Target, near: &[IpAddr]) -> Answer<Self> {
        let client = Client::open(target).map_err(refused)?;
        let mut card = Self {
            cards: Vec::new(),
            sockets: Sockets::default(),
            start: Instant::now(),
            near: Gid::default(),
            first_near: FIRST_QPN,
            handles: BTreeMap::new(),
            is_pipelined: false,
            pools: Pools::default(),
            unreusable: Vec::new(),
            old_unreusable: 0,
            renewals: 0,
            pending: Vec::new(),
            client,
        };
        card.open(near)?;
        Ok(card)
    }

    /// Finds a pair of addresses for each family, and opens their sockets.
    fn open(&mut self, near: &[IpAddr]) -> Answer<()> {
        let hello = self.client.card().clone();
        let gids = hello["gids"].as_array().into_iter().flatten().filter(|gid| gid["type"] == "RoCE v2");
        let addresses: Vec<Gid> =
            gids.filter_map(|gid| gid["gid"].as_str()?.parse().ok()).map(|ip| IpAddr::V6(ip).into()).collect();
        let max_mtu = hello["port"]["active_mtu"].as_u64().unwrap_or(1024) as u32;
        let (device, version) = (self.client.name().to_owned(), &hello["version"]);
        let is_far = |gid: &Gid| !self.client.is_local() && gid.to_ip().is_loopback();
        let mut reason = String::from(if addresses.iter().any(is_far) {
            "the card is on the loopback interface of its host; start the agent there with --device and another card"
        } else {
            "the card has no RoCE v2 address but link-local ones; give its interface an address"
        });
        let addresses: Vec<_> = addresses.into_iter().filter(|gid| !is_far(gid)).collect();
        for ipv4 in [true, false] {
            let fits = |gid: &&Gid| gid.is_ipv4() == ipv4 && !is_link_local(**gid);
            let Some(address) = addresses.iter().find(fits).copied() else { continue };
            let bound = near_addresses(address, near).and_then(|pair| self.sockets.bind(pair, address));
            let measured = bound.and_then(|(pair, port)| Ok((pair, port, max_payload(pair[0], address)?)));
            let (pair, near_port, max_datagram) = match measured {
                Ok(opened) => opened,
                Err(error) => {
                    reason = format!("cannot open sockets for packets to {}: {error}", address.to_ip());
                    continue;
                }
            };
            let name = format!("{device} at {} (agent {})", address.to_ip(), version.as_str().unwrap_or("?"));
            self.cards.push(Card {
                name,
                address,
                near: pair,
                first_near: 0,
                guid: guid(),
                near_port,
                jitter: JITTER,
                max_mtu,
                max_datagram,
            });
        }
        if self.cards.is_empty() { Err(Refused::broken(reason)) } else { Ok(()) }
    }

    /// Returns the address of the card in the family of the current case.
    fn address(&self) -> Answer<Gid> {
        let card = self.cards.iter().find(|card| card.address.is_ipv4() == self.near.is_ipv4());
        card.map(|card| card.address).ok_or_else(|| Refused::broken("the card has no address"))
    }

    /// Sends a command after the pending ones, and waits for its answer.
    fn call(&mut self, command: Command, arguments: Value) -> Answer<Value> {
        let missing = || Refused::broken("the agent sent no response");
        self.call_all([(command, arguments)])?.pop().ok_or_else(missing)
    }

    /// Sends commands together, after the pending ones, and waits for their answers.
    fn call_all(&mut self, all: impl IntoIterator<Item = (Command, Value)>) -> Answer<Vec<Value>> {
        for (command, arguments) in all {
            self.client.ask(command, arguments).map_err(refused)?;
        }
        let mut answers = self.client.answers().map_err(refused)?.into_iter();
        for (must_succeed, answer) in std::mem::take(&mut self.pending).into_iter().zip(&mut answers) {
            if let Err(refusal) = answer.map_err(ClientError::Refused).map_err(refused)
                && must_succeed
            {
                return Err(refusal);
            }
        }
        answers.map(|answer| answer.map_err(ClientError::Refused).map_err(refused)).collect()
    }

    /// Sends a command whose result is not needed. When pipelined, does not wait for the answer; a
    /// later call then fails with a refusal of this command if `must_succeed`, or ignores it.
    fn issue(&mut self, command: Command, arguments: Value, must_succeed: bool) -> Answer<()> {
        if !self.is_pipelined {
            return self.call(command, arguments).map(|_| ());
        }
        if self.pending.len() >= MAX_PENDING {
            self.call_all([])?;
        }
        self.client.ask(command, arguments).map_err(refused)?;
        self.pending.push(must_succeed);
        Ok(())
    }

    /// Waits for the answers of pending commands.
    fn flush(&mut self) -> Answer<()> {
        if self.pending.is_empty() { Ok(()) } else { self.call_all([]).map(|_| ()) }
    }

    fn create(&mut self, command: Command, arguments: Value, handle: &str) -> Answer<Handle> {
        let answer = self.call(command, arguments)?;
        number(&answer, handle)
    }

    fn destroy(&mut self, kind: &str, handle: Handle) -> Answer<()> {
        self.call(Command::Destroy, json!({"kind": kind, "handle": handle})).map(|_| ())
    }

    /// Fails if the card does not support path migration (`IBV_DEVICE_AUTO_PATH_MIG`).
    fn require_migration(&self) -> Answer<()> {
        const AUTO_PATH_MIG: u64 = 1 << 4;
        let flags = self.client.card()["limits"]["device_cap_flags"].as_u64().unwrap_or_default();
        if flags & AUTO_PATH_MIG != 0 {
            return Ok(());
        }
        Err(Refused::unsupported("the card does not support AUTO_PATH_MIG"))
    }

    fn free_all(&mut self) -> Answer<()> {
        self.call(Command::Reset, Value::Null)?;
        self.handles.clear();
        self.pools = Pools::default();
        (self.unreusable, self.old_unreusable) = (Vec::new(), 0);
        Ok(())
    }

    /// Prepares the objects of the previous case for the next one.
    fn reuse(&mut self) -> Answer<()> {
        if self.old_unreusable >= MAX_UNREUSABLE {
            return self.free_all();
        }
        self.old_unreusable += self.unreusable.len();
        self.pools.regions.release_all();
        let (qps, queues) = (self.pools.qps.release_all(), self.pools.queues.release_all());
        let qps = qps.into_iter().map(|(qp, _)| qp).chain(std::mem::take(&mut self.unreusable));
        for qp in qps {
            self.issue(Command::ModifyQp, json!({"qp": qp, "to": "RESET", "exact": true}), true)?;
        }
        for cq in queues {
            self.issue(Command::Poll, json!({"cq": cq, "max": 4096}), true)?;
        }
        self.issue(Command::Events, Value::Null, true)
    }
}

/// Returns a new GUID for the near side, because cards remember the GUIDs of earlier connections.
fn guid() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    since.as_nanos() as u64 | 1
}

fn refused(error: ClientError) -> Refused {
    match error {
        ClientError::Refused(refusal) => Refused { text: refusal.text, errno: refusal.errno },
        other => Refused::broken(other.to_string()),
    }
}

fn io_error(error: &io::Error) -> Refused {
    Refused::broken(format!("the socket of the near side: {error}"))
}

impl Target for AgentCard {
    fn card(&self, ipv6: bool) -> Option<Card> {
        let card = self.cards.iter().find(|card| card.address.is_ipv4() != ipv6)?;
        Some(Card { first_near: self.first_near, ..card.clone() })
    }

    fn identity(&self) -> Vec<(String, String)> {
        let identity = self.client.card()["identity"].as_object().into_iter().flatten();
        identity.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
    }

    fn begin(&mut self, ipv6: bool) -> Answer<()> {
        if self.is_pipelined {
            self.reuse()?;
        } else {
            self.free_all()?;
        }
        self.first_near = FIRST_QPN + (self.first_near - FIRST_QPN + QPNS_PER_CASE) % QPN_RANGE;
        let near = self.card(ipv6).map(|card| card.near).unwrap_or_default();
        self.near = near[0];
        self.sockets.begin(near).map_err(|error| io_error(&error))
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn send(&mut self, datagram: &Datagram) -> Answer<()> {
        self.flush()?;
        self.sockets.send(&datagram.net, &datagram.bytes).map_err(|error| match error.raw_os_error() {
            // Fragments do not help: the ICRC covers the IP header of the whole packet.
            Some(libc::EMSGSIZE) => Refused::unsupported(format!(
                "{} bytes are more than the MTU of the near side's link",
                datagram.bytes.len()
            )),
            _ => io_error(&error),
        })
    }

    fn receive(&mut self, until: Duration) -> Answer<Option<(Duration, Datagram)>> {
        self.flush()?;
        let deadline = self.start + until;
        let received = self.sockets.receive(deadline, self.first_near).map_err(|error| io_error(&error))?;
        Ok(received.map(|(net, bytes, at)| (at.saturating_duration_since(self.start), Datagram { net, bytes })))
    }

    fn is_lost(&self) -> bool {
        self.client.is_lost()
    }

    fn pause(&mut self, until: Duration) {
        std::thread::sleep(until.saturating_sub(self.now()));
    }

    fn pipeline(&mut self) -> Answer<()> {
        self.free_all()?;
        self.is_pipelined = true;
        Ok(())
    }

    fn renew(&mut self) -> Answer<()> {
        self.renewals += 1;
        if self.renewals.is_multiple_of(MAX_RENEWALS) {
            return self.free_all();
        }
        self.reuse()?;
        self.pools = Pools::default();
        Ok(())
    }
}

impl FarSide for AgentCard {
    fn alloc_pd(&mut self) -> Answer<Handle> {
        self.create(Command::AllocPd, Value::Null, "pd")
    }

    fn register(
        &mut self,
        length: u64,
        access: u32,
        fill: u8,
        pd: Option<Handle>,
        edge: Option<u64>,
    ) -> Answer<Region> {
        let is_plain = (pd, edge) == (None, None);
        if is_plain && let Some(region) = self.pools.regions.take(&(length, access)) {
            self.issue(Command::Write, json!({"mr": region.mr, "fill": fill, "length": length}), true)?;
            return Ok(region);
        }
        let arguments = json!({"length": length, "access": access, "fill": fill, "pd": pd, "edge": edge});
        let answer = self.call(Command::Reg, arguments).map_err(|refused| {
            // Without an errno, the agent is lost.
            if access & FLUSH_GLOBAL == 0 || refused.errno == 0 {
                return refused;
            }
            Refused::unsupported(format!("the card does not grant FLUSH access: {refused}"))
        })?;
        let word = |name| number(&answer, name);
        let key = |name| word(name).map(|key| key as u32);
        let region = Region { mr: word("mr")?, addr: word("addr")?, lkey: key("lkey")?, rkey: key("rkey")? };
        if self.is_pipelined && is_plain {
            self.pools.regions.add((length, access), region);
        }
        Ok(region)
    }

    fn deregister(&mut self, mr: Handle) -> Answer<()> {
        self.call(Command::Dereg, json!({"mr": mr})).map(|_| ())
    }

    fn create_cq(&mut self, cqe: u32) -> Answer<Handle> {
        if let Some(cq) = self.pools.queues.take(&cqe) {
            return Ok(cq);
        }
        let cq = self.create(Command::CreateCq, json!({"cqe": cqe}), "cq")?;
        if self.is_pipelined {
            self.pools.queues.add(cqe, cq);
        }
        Ok(cq)
    }

    fn create_srq(&mut self, pd: Option<Handle>) -> Answer<Handle> {
        self.create(Command::CreateSrq, json!({"pd": pd, "max_wr": 64, "max_sge": 4}), "srq")
    }

    fn create_qp(&mut self, new: &NewQp) -> Answer<(Handle, u32)> {
        if let Some(known) = self.pools.qps.take(new) {
            return Ok(known);
        }
        let [sends, receives, sges, inline] = new.caps;
        let arguments = json!({
            "type": new.service, "pd": new.pd, "cq": new.cq, "srq": new.srq, "xrcd": new.xrcd, "max_send_wr": sends,
            "max_recv_wr": receives, "max_sge": sges, "max_inline": inline,
        });
        let answer = self.call(Command::CreateQp, arguments)?;
        let created = (number(&answer, "qp")?, number(&answer, "qpn")? as u32);
        if self.is_pipelined && (new.pd, new.srq, new.xrcd) == (None, None, None) {
            self.pools.qps.add(new.clone(), created);
        } else {
            self.unreusable.push(created.0);
        }
        Ok(created)
    }

    fn modify_qp(&mut self, qp: Handle, change: &Change) -> Answer<()> {
        if change.migration.is_some() || change.alternate.is_some() {
            self.require_migration()?;
            self.sockets.receive_stranger();
        }
        // The agent adds attributes that a transition requires; a return to RTS requires none.
        let exact = change.to == "RTS" && change.sq_psn.is_none();
        let arguments = json!({
            "qp": qp, "to": change.to, "exact": exact, "access": change.access, "qkey": change.qkey,
            "path_mtu": change.path_mtu, "dest_qpn": change.dest.map(|(qpn, _)| qpn),
            "dgid": change.dest.map(|(_, gid)| gid.to_string()), "traffic_class": change.traffic_class,
            "rq_psn": change.rq_psn,
            "sq_psn": change.sq_psn, "timeout": change.timeout, "retry_cnt": change.retry_cnt,
            "rnr_retry": change.rnr_retry, "min_rnr_timer": change.min_rnr_timer,
            "max_rd_atomic": change.max_rd_atomic, "max_dest_rd_atomic": change.max_dest_rd_atomic,
            "sqd_event": change.notify.then_some(true), "path_mig": change.migration,
            "alt_dgid": change.alternate.map(|(gid, _)| gid.to_string()),
            "alt_timeout": change.alternate.map(|(_, timeout)| timeout),
            "hop_limit": change.hop_limit,
        });
        self.issue(Command::ModifyQp, arguments, true)
    }

    fn query_qp(&mut self, qp: Handle) -> Answer<String> {
        Ok(state(&self.call(Command::QueryQp, json!({"qp": qp}))?))
    }

    fn destroy_qp(&mut self, qp: Handle) -> Answer<()> {
        self.destroy("qp", qp)
    }

    fn post_send(&mut self, qp: Handle, work: &Work) -> Answer<()> {
        let mut arguments = json!({
            "qp": qp, "wr_id": work.wr_id, "opcode": work.opcode, "flags": work.flags,
            "remote_addr": work.remote_addr, "rkey": work.rkey, "compare_add": work.compare_add, "swap": work.swap,
            "remote_srqn": work.srqn,
        });
        if matches!(work.opcode.as_str(), "SEND_WITH_INV" | "LOCAL_INV") {
            arguments["invalidate_rkey"] = work.rkey.into();
        } else {
            arguments["imm"] = work.imm.into();
        }
        match &work.inline {
            Some(bytes) => arguments["inline_data"] = to_hex(bytes).into(),
            None => arguments["sge"] = segments(&work.pieces),
        }
        if let Some((dgid, qpn, qkey)) = work.datagram {
            let path = (dgid.0, [work.traffic_class, work.hop_limit]);
            let handle = match self.handles.get(&path) {
                Some(handle) => *handle,
                None => {
                    let (traffic_class, hop_limit) = (work.traffic_class, work.hop_limit);
                    let arguments =
                        json!({"dgid": dgid.to_string(), "traffic_class": traffic_class, "hop_limit": hop_limit});
                    self.create(Command::CreateAh, arguments, "ah")?
                }
            };
            self.handles.insert(path, handle);
            arguments["ah"] = handle.into();
            (arguments["remote_qpn"], arguments["remote_qkey"]) = (qpn.into(), qkey.into());
        }
        self.issue(Command::PostSend, arguments, false)
    }

    fn post_recv(&mut self, qp: Handle, wr_id: u64, pieces: &[Piece]) -> Answer<()> {
        let arguments = json!({"qp": qp, "wr_id": wr_id, "sge": segments(pieces)});
        self.issue(Command::PostRecv, arguments, false)
    }

    fn post_srq_recv(&mut self, srq: Handle, wr_id: u64, pieces: &[Piece]) -> Answer<()> {
        let arguments = json!({"srq": srq, "wr_id": wr_id, "sge": segments(pieces)});
        self.issue(Command::PostRecv, arguments, false)
    }

    fn poll(&mut self, cq: Handle) -> Answer<Vec<Completed>> {
        Ok(all_completed(&self.call(Command::Poll, json!({"cq": cq, "max": 256}))?))
    }

    fn read(&mut self, mr: Handle, at: u64, len: u64) -> Answer<Vec<u8>> {
        hex(&self.call(Command::Read, json!({"mr": mr, "offset": at, "length": len}))?)
    }

    fn write(&mut self, mr: Handle, at: u64, bytes: &[u8]) -> Answer<()> {
        self.call(Command::Write, json!({"mr": mr, "offset": at, "hex": to_hex(bytes)})).map(|_| ())
    }

    fn snapshot(&mut self, queues: &[(Handle, Handle)], regions: &[(Handle, u64)]) -> Answer<Snapshot> {
        let queue_commands = queues.iter().flat_map(|(qp, cq)| {
            [(Command::QueryQp, json!({"qp": qp})), (Command::Poll, json!({"cq": cq, "max": 256}))]
        });
        let reads = regions.iter().map(|(mr, len)| (Command::Read, json!({"mr": mr, "length": len, "runs": true})));
        let answers = self.call_all(queue_commands.chain(reads).chain([(Command::Events, Value::Null)]))?;
        let (queue_answers, rest) = answers.split_at(answers.len().min(2 * queues.len()));
        let (memory, events) = rest.split_at(rest.len().min(regions.len()));
        let queues = queue_answers.chunks(2).map(|pair| (state(&pair[0]), all_completed(&pair[1])));
        let memory = memory.iter().zip(regions).map(|(answer, (_, len))| runs(answer, *len as usize));
        let events = events.iter().flat_map(all_events).collect();
        Ok(Snapshot { queues: queues.collect(), events, memory: memory.collect::<Answer<_>>()? })
    }

    fn events(&mut self) -> Answer<Vec<Event>> {
        Ok(all_events(&self.call(Command::Events, Value::Null)?))
    }
}

/// Adds the parameters of a connection to the arguments of a command.
fn with_conn_param(mut arguments: Value, conn_param: &ConnParam) -> Value {
    let [responder, initiator] = conn_param.depths;
    arguments["hex"] = to_hex(&conn_param.private_data).into();
    (arguments["responder_resources"], arguments["initiator_depth"]) = (responder.into(), initiator.into());
    (arguments["retry_cnt"], arguments["rnr_retry"]) = (conn_param.retry_cnt.into(), conn_param.rnr_retry.into());
    arguments
}

impl Extensions for AgentCard {
    fn listen(&mut self, space: &str, backlog: Option<u32>) -> Answer<(Handle, u16)> {
        let arguments = json!({"gid": self.address()?.to_string(), "space": space, "backlog": backlog});
        let answer = self.call(Command::CmListen, arguments)?;
        Ok((number(&answer, "cm")?, number(&answer, "port")? as u16))
    }

    fn connect(&mut self, space: &str, port: u16, qp: Handle, conn_param: &ConnParam) -> Answer<Handle> {
        let (from, to) = (self.address()?, self.near);
        let arguments =
            json!({"gid": to.to_string(), "from": from.to_string(), "port": port, "space": space, "qp": qp});
        self.create(Command::CmConnect, with_conn_param(arguments, conn_param), "cm")
    }

    fn accept(&mut self, id: Handle, qp: Handle, state: &str, conn_param: &ConnParam) -> Answer<()> {
        self.call(Command::CmAccept, with_conn_param(json!({"cm": id, "qp": qp, "to": state}), conn_param)).map(|_| ())
    }

    fn establish(&mut self, id: Handle, qp: Handle) -> Answer<()> {
        self.call(Command::CmEstablish, json!({"cm": id, "qp": qp})).map(|_| ())
    }

    fn reject(&mut self, id: Handle, private_data: &[u8]) -> Answer<()> {
        self.call(Command::CmReject, json!({"cm": id, "hex": to_hex(private_data)})).map(|_| ())
    }

    fn disconnect(&mut self, id: Handle) -> Answer<()> {
        self.call(Command::CmDisconnect, json!({"cm": id})).map(|_| ())
    }

    fn notify(&mut self, id: Handle) -> Answer<()> {
        self.call(Command::CmNotify, json!({"cm": id})).map(|_| ())
    }

    fn destroy_id(&mut self, id: Handle) -> Answer<()> {
        self.destroy("cm", id)
    }

    fn connection_events(&mut self) -> Answer<Vec<ConnectionEvent>> {
        let answer = self.call(Command::CmEvents, Value::Null)?;
        Ok(answer["events"].as_array().into_iter().flatten().map(connection_event).collect())
    }

    fn arm(&mut self, cq: Handle, solicited: bool) -> Answer<()> {
        self.call(Command::Notify, json!({"cq": cq, "solicited": solicited})).map(|_| ())
    }

    fn is_woken(&mut self, cq: Handle) -> Answer<bool> {
        let answer = self.call(Command::CqEvent, json!({"cq": cq}))?;
        Ok(answer["fired"].as_bool().unwrap_or_default())
    }

    fn resize(&mut self, cq: Handle, entries: u32) -> Answer<()> {
        self.call(Command::ResizeCq, json!({"cq": cq, "cqe": entries})).map(|_| ())
    }

    fn attributes(&mut self, qp: Handle) -> Answer<Attributes> {
        Ok(attributes(&self.call(Command::QueryQp, json!({"qp": qp}))?))
    }

    fn reregister(&mut self, mr: Handle, access: u32) -> Answer<[u32; 2]> {
        let answer = self.call(Command::Rereg, json!({"mr": mr, "access": access}))?;
        Ok([number(&answer, "lkey")? as u32, number(&answer, "rkey")? as u32])
    }

    fn set_limit(&mut self, srq: Handle, limit: u32) -> Answer<()> {
        self.call(Command::ModifySrq, json!({"srq": srq, "limit": limit})).map(|_| ())
    }

    fn open_xrcd(&mut self) -> Answer<Handle> {
        self.create(Command::OpenXrcd, Value::Null, "xrcd")
    }

    fn create_xrc_srq(&mut self, pd: Option<Handle>, xrcd: Handle, cq: Handle) -> Answer<(Handle, u32)> {
        let arguments = json!({"pd": pd, "xrcd": xrcd, "cq": cq, "max_wr": 64, "max_sge": 4});
        let answer = self.call(Command::CreateSrq, arguments)?;
        Ok((number(&answer, "srq")?, number(&answer, "srqn")? as u32))
    }

    fn create_tag_srq(&mut self, pd: Option<Handle>, tags: u32) -> Answer<(Handle, Handle)> {
        let cq = self.create(Command::CreateCq, json!({"cqe": 256, "tags": true}), "cq")?;
        let arguments = json!({"pd": pd, "cq": cq, "tags": tags, "max_wr": 64, "max_sge": 4});
        Ok((self.create(Command::CreateSrq, arguments, "srq")?, cq))
    }

    fn post_tag(&mut self, srq: Handle, work: &TagWork) -> Answer<u32> {
        let arguments = json!({
            "srq": srq, "op": work.operation, "wr_id": work.wr_id, "recv_wr_id": work.recv_id, "tag": work.tag,
            "mask": work.mask, "sge": segments(&work.pieces), "handle": work.handle, "unexpected": work.unexpected,
        });
        Ok(number(&self.call(Command::PostTag, arguments)?, "handle")? as u32)
    }

    fn alloc_window(&mut self, kind: u32, pd: Option<Handle>) -> Answer<(Handle, u32)> {
        let answer = self.call(Command::AllocMw, json!({"type": kind, "pd": pd}))?;
        Ok((number(&answer, "mw")?, number(&answer, "rkey")? as u32))
    }

    fn bind_window(&mut self, qp: Handle, window: Handle, mr: Handle, bound: Bound) -> Answer<u32> {
        let Bound { at, length, access, wr_id } = bound;
        let arguments = json!({
            "qp": qp, "mw": window, "mr": mr, "offset": at, "length": length, "access": access, "wr_id": wr_id,
        });
        Ok(number(&self.call(Command::BindMw, arguments)?, "rkey")? as u32)
    }

    fn set_member(&mut self, qp: Handle, group: Gid, joins: bool) -> Answer<()> {
        let command = if joins { Command::AttachMcast } else { Command::DetachMcast };
        self.call(command, json!({"qp": qp, "gid": group.to_string()})).map(|_| ())
    }
}

fn is_link_local(gid: Gid) -> bool {
    matches!(gid.to_ip(), IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Returns the addresses of the near side and of a stranger, a host without connections; zero if
/// there is no stranger. They are the given addresses, the next two after a loopback address, or
/// the source address of the route to the card.
fn near_addresses(card: Gid, given: &[IpAddr]) -> io::Result<[Gid; 2]> {
    let mut given = given.iter().filter(|ip| ip.is_ipv4() == card.is_ipv4()).map(|ip| Gid::from(*ip));
    if let Some(near) = given.next() {
        return Ok([near, given.next().unwrap_or_default()]);
    }
    match card.to_ip() {
        IpAddr::V4(ip) if ip.is_loopback() => {
            let [a, b, c, d] = ip.octets();
            let neighbour = |by: u8| Gid::from(Ipv4Addr::new(a, b, c, d.wrapping_add(by)));
            Ok([neighbour(1), neighbour(2)])
        }
        ip => {
            let any: SocketAddr =
                if ip.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
            let socket = UdpSocket::bind(any)?;
            socket.connect((ip, ROCE_PORT))?;
            let near = socket.local_addr()?.ip();
            if near == ip {
                let why = format!("{ip} is an address of this host; choose another near address with --near");
                return Err(io::Error::other(why));
            }
            Ok([near.into(), Gid::default()])
        }
    }
}

fn number(answer: &Value, name: &str) -> Answer<u64> {
    answer[name].as_u64().ok_or_else(|| Refused::broken(format!("the agent's response has no {name}: {answer}")))
}

fn segments(pieces: &[Piece]) -> Value {
    pieces.iter().map(|piece| json!({"addr": piece.addr, "length": piece.len, "lkey": piece.lkey})).collect()
}

fn state(answer: &Value) -> String {
    answer["state"].as_str().unwrap_or_default().into()
}

fn hex(answer: &Value) -> Answer<Vec<u8>> {
    let bytes = answer["hex"].as_str().and_then(from_hex);
    bytes.ok_or_else(|| Refused::broken(format!("the agent's response has no valid hex: {answer}")))
}

fn runs(answer: &Value, len: usize) -> Answer<Vec<u8>> {
    from_runs(&answer["runs"], len)
        .ok_or_else(|| Refused::broken(format!("the agent's response has no valid runs: {answer}")))
}

fn all_completed(answer: &Value) -> Vec<Completed> {
    answer["completions"].as_array().into_iter().flatten().map(completed).collect()
}

fn all_events(answer: &Value) -> Vec<Event> {
    let source_of = |event: &Value| {
        let handle = |kind: &str| event[kind].as_u64();
        handle("qp").map(Source::Qp).or_else(|| handle("srq").map(Source::Srq)).unwrap_or(Source::Other)
    };
    let events = answer["events"].as_array().into_iter().flatten();
    events.filter_map(|event| Some(Event { name: event["type"].as_str()?.to_owned(), of: source_of(event) })).collect()
}

fn completed(value: &Value) -> Completed {
    let word = |name: &str| value[name].as_u64().map(|word| word as u32);
    let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    Completed {
        wr_id: value["wr_id"].as_u64().unwrap_or_default(),
        status: text("status"),
        opcode: text("opcode"),
        byte_len: word("byte_len").unwrap_or_default(),
        imm: word("imm"),
        invalidated: word("invalidated_rkey"),
        src_qp: word("src_qp").unwrap_or_default(),
        tag: value["tag"].as_u64().zip(word("context")),
        flags: bits(&value["flags"], names::WC_FLAGS),
        qpn: word("qpn").unwrap_or_default(),
    }
}

/// Returns the flags whose names are in a list.
fn bits(list: &Value, table: names::Table) -> u32 {
    let names = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    names.filter_map(|name| names::number(table, name)).fold(0, |all, bit| all | bit)
}

/// Returns the attributes in the answer to a query.
fn attributes(answer: &Value) -> Attributes {
    let name_of_agent = |name| match name {
        "mtu" => "path_mtu",
        "rd_atomic" => "max_rd_atomic",
        "dest_rd_atomic" => "max_dest_rd_atomic",
        "rnr_timer" => "min_rnr_timer",
        name => name,
    };
    Attributes {
        numbers: QUERIED.into_iter().filter_map(|name| Some((name, answer[name_of_agent(name)].as_u64()?))).collect(),
        access: bits(&answer["access"], names::ACCESS),
        migration: answer["path_mig"].as_str().unwrap_or_default().to_owned(),
    }
}

fn connection_event(value: &Value) -> ConnectionEvent {
    ConnectionEvent {
        name: value["type"].as_str().unwrap_or_default().to_owned(),
        status: value["status"].as_i64().unwrap_or_default(),
        id: value["cm"].as_u64().unwrap_or_default(),
        listener: value["listener"].as_u64(),
        private_data: hex(value).unwrap_or_default(),
        numbers: REPORTED.into_iter().filter_map(|name| Some((name, value[name].as_u64()?))).collect(),
    }
}

/// Objects to reuse, each with its attributes, and true if the current case uses it.
#[derive(Debug)]
struct Pool<M, T>(Vec<(M, T, bool)>);

#[derive(Debug, Default)]
struct Pools {
    /// Memory regions by length and access.
    regions: Pool<(u64, u32), Region>,
    /// Completion queues by entries.
    queues: Pool<u32, Handle>,
    /// Queue pairs, with their numbers.
    qps: Pool<NewQp, (Handle, u32)>,
}

impl<M, T> Default for Pool<M, T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<M: PartialEq, T: Copy> Pool<M, T> {
    /// Takes an unused object with these attributes.
    fn take(&mut self, wanted: &M) -> Option<T> {
        let (_, object, is_used) =
            self.0.iter_mut().find(|(attributes, _, is_used)| !*is_used && attributes == wanted)?;
        *is_used = true;
        Some(*object)
    }

    /// Adds an object of the current case.
    fn add(&mut self, attributes: M, object: T) {
        self.0.push((attributes, object, true));
    }

    /// Makes all objects of the last case available, and returns them.
    fn release_all(&mut self) -> Vec<T> {
        self.0.iter_mut().filter_map(|(_, object, is_used)| std::mem::take(is_used).then_some(*object)).collect()
    }
}
