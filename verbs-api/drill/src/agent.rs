//! The target behind an agent: the far side obeys over TCP (`roxe_peer`), packets go through a UDP
//! socket of this host.
//!
//! The near side has an address of its own, because both ends of RoCEv2 use the same port: on one
//! host another loopback address. Touches the network and the clock.
//!
//! In a hurry (`Target::hurry`), what needs no answer is told to the agent together with the next
//! thing that does, or before the next packet, and objects are used again (`agent/stock.rs`).

mod addresses;
mod answers;
mod extensions;
mod sockets;
mod stock;

use crate::target::{Answer, Card, Change, Completed, Datagram, FarSide, Handle, NewQp, Piece, Refused, Region};
use crate::target::{Look, Target, Work};
use addresses::{is_link_local, near_addresses};
use answers::{all_completed, hex, number, runs, segments, state};
use roxe_net::udp::max_payload;
use roxe_peer::client::{self, Client, ClientError};
use roxe_peer::protocol::{Command, to_hex};
use roxe_wire::Gid;
use serde_json::{Value, json};
use sockets::{FIRST, NUMBERS, SPAN, Sockets};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};
use stock::Stock;

/// How long a packet may lie in the socket before the near side has a processor.
const JITTER: Duration = Duration::from_millis(3);
/// As many requests as may wait for being told together.
const MAX_WAITING: usize = 128;
/// `IBV_ACCESS_FLUSH_GLOBAL`: Linux knows it since 6.2, and few cards do.
const FLUSH_GLOBAL: u32 = 1 << 8;
/// How often objects may be left behind before all are freed: the agent has bounds.
const MAX_RENEWALS: u32 = 64;

/// A card that an agent drives.
pub struct AgentCard {
    client: Client,
    cards: Vec<Card>,
    sockets: Sockets,
    start: Instant,
    /// The near side of the current case.
    near: Gid,
    first_near: u32,
    /// Address handles by destination.
    handles: BTreeMap<[u8; 16], Handle>,
    /// Whether cases shall follow each other fast, and what that leaves for the next one.
    is_in_a_hurry: bool,
    stock: Stock,
    renewals: u32,
    /// Of each request that has not been told yet, whether a refusal is an error.
    waiting: Vec<bool>,
}

impl AgentCard {
    /// Connects to the agent. `near` are addresses of this host for the near side; without them one
    /// is chosen by the way to the card.
    ///
    /// # Errors
    /// The agent is not there or refuses, or no address of this host can be used.
    pub fn connect(target: &client::Target, near: &[IpAddr]) -> Answer<Self> {
        let client = Client::open(target).map_err(refused)?;
        let mut card = Self {
            cards: Vec::new(),
            sockets: Sockets::default(),
            start: Instant::now(),
            near: Gid::default(),
            first_near: FIRST,
            handles: BTreeMap::new(),
            is_in_a_hurry: false,
            stock: Stock::default(),
            renewals: 0,
            waiting: Vec::new(),
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
        let mut trouble = String::from(if addresses.iter().any(is_far) {
            "the card is on the loopback interface of its host; choose another one there with --device"
        } else {
            "the card has no RoCE v2 address"
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
                    trouble = format!("no address here for {}: {error}", address.to_ip());
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
        if self.cards.is_empty() { Err(Refused::broken(trouble)) } else { Ok(()) }
    }

    /// Tells the agent this, behind what waits.
    fn call(&mut self, command: Command, arguments: Value) -> Answer<Value> {
        let nothing = || Refused::broken("the agent says nothing");
        self.call_all([(command, arguments)])?.pop().ok_or_else(nothing)
    }

    /// Tells the agent these together, behind what waits.
    fn call_all(&mut self, all: impl IntoIterator<Item = (Command, Value)>) -> Answer<Vec<Value>> {
        for (command, arguments) in all {
            self.client.ask(command, arguments).map_err(refused)?;
        }
        let mut answers = self.client.answers().map_err(refused)?.into_iter();
        for (matters, answer) in std::mem::take(&mut self.waiting).into_iter().zip(&mut answers) {
            if let Err(refusal) = answer.map_err(ClientError::Refused).map_err(refused)
                && matters
            {
                return Err(refusal);
            }
        }
        answers.map(|answer| answer.map_err(ClientError::Refused).map_err(refused)).collect()
    }

    /// Tells the agent this; in a hurry, together with other things. Unless it `matters`, a refusal
    /// is overheard then.
    fn tell(&mut self, command: Command, arguments: Value, matters: bool) -> Answer<()> {
        if !self.is_in_a_hurry {
            return self.call(command, arguments).map(|_| ());
        }
        if self.waiting.len() >= MAX_WAITING {
            self.call_all([])?;
        }
        self.client.ask(command, arguments).map_err(refused)?;
        self.waiting.push(matters);
        Ok(())
    }

    /// Tells the agent what waits.
    fn tell_all(&mut self) -> Answer<()> {
        if self.waiting.is_empty() { Ok(()) } else { self.call_all([]).map(|_| ()) }
    }

    fn make(&mut self, command: Command, arguments: Value, handle: &str) -> Answer<Handle> {
        let answer = self.call(command, arguments)?;
        number(&answer, handle)
    }

    fn destroy(&mut self, kind: &str, handle: Handle) -> Answer<()> {
        self.call(Command::Destroy, json!({"kind": kind, "handle": handle})).map(|_| ())
    }

    /// Whether the card has alternate paths (`IBV_DEVICE_AUTO_PATH_MIG`).
    fn can_migrate(&self) -> Answer<()> {
        const AUTO_PATH_MIG: u64 = 1 << 4;
        let flags = self.client.card()["limits"]["device_cap_flags"].as_u64().unwrap_or_default();
        if flags & AUTO_PATH_MIG != 0 {
            return Ok(());
        }
        Err(Refused::unsupported("the card has no AUTO_PATH_MIG"))
    }

    /// Frees everything.
    fn free_all(&mut self) -> Answer<()> {
        self.call(Command::Reset, Value::Null)?;
        self.handles.clear();
        self.stock = Stock::default();
        Ok(())
    }

    /// Makes the objects of the case before ready for the next one.
    fn use_again(&mut self) -> Answer<()> {
        self.stock.regions.put_back();
        let (qps, queues) = (self.stock.qps.put_back(), self.stock.queues.put_back());
        for (qp, _) in qps {
            self.tell(Command::ModifyQp, json!({"qp": qp, "to": "RESET", "exact": true}), true)?;
        }
        for cq in queues {
            self.tell(Command::Poll, json!({"cq": cq, "max": 4096}), true)?;
        }
        self.tell(Command::Events, Value::Null, true)
    }
}

/// A GUID of the near side that cards have not heard before: they remember whom they were connected
/// with.
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

    fn begin(&mut self, ipv6: bool) -> Answer<()> {
        if self.is_in_a_hurry {
            self.use_again()?;
        } else {
            self.free_all()?;
        }
        self.first_near = FIRST + (self.first_near - FIRST + NUMBERS) % SPAN;
        let near = self.card(ipv6).map(|card| card.near).unwrap_or_default();
        self.near = near[0];
        self.sockets.begin(near).map_err(|error| io_error(&error))
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn send(&mut self, datagram: &Datagram) -> Answer<()> {
        self.tell_all()?;
        self.sockets.send(&datagram.net, &datagram.bytes).map_err(|error| match error.raw_os_error() {
            // Nor must it be sent in fragments: the ICRC covers the IP header.
            Some(libc::EMSGSIZE) => Refused::unsupported(format!(
                "{} bytes are more than the link of the near side takes",
                datagram.bytes.len()
            )),
            _ => io_error(&error),
        })
    }

    fn receive(&mut self, until: Duration) -> Answer<Option<(Duration, Datagram)>> {
        self.tell_all()?;
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

    fn hurry(&mut self) -> Answer<()> {
        self.free_all()?;
        self.is_in_a_hurry = true;
        Ok(())
    }

    fn renew(&mut self) -> Answer<()> {
        self.renewals += 1;
        if self.renewals.is_multiple_of(MAX_RENEWALS) {
            return self.free_all();
        }
        self.use_again()?;
        self.stock = Stock::default();
        Ok(())
    }
}

impl FarSide for AgentCard {
    fn alloc_pd(&mut self) -> Answer<Handle> {
        self.make(Command::AllocPd, Value::Null, "pd")
    }

    fn register(&mut self, length: u64, access: u32, fill: u8, pd: Option<Handle>) -> Answer<Region> {
        if let (None, Some(region)) = (pd, self.stock.regions.take(&(length, access))) {
            self.tell(Command::Write, json!({"mr": region.mr, "fill": fill, "length": length}), true)?;
            return Ok(region);
        }
        let arguments = json!({"length": length, "access": access, "fill": fill, "pd": pd});
        let answer = self.call(Command::Reg, arguments).map_err(|refused| {
            // Without an errno it is the agent that has gone.
            if access & FLUSH_GLOBAL == 0 || refused.errno == 0 {
                return refused;
            }
            Refused::unsupported(format!("the card gives nobody the right to FLUSH: {refused}"))
        })?;
        let word = |name| number(&answer, name);
        let key = |name| word(name).map(|key| key as u32);
        let region = Region { mr: word("mr")?, addr: word("addr")?, lkey: key("lkey")?, rkey: key("rkey")? };
        if self.is_in_a_hurry && pd.is_none() {
            self.stock.regions.keep((length, access), region);
        }
        Ok(region)
    }

    fn deregister(&mut self, mr: Handle) -> Answer<()> {
        self.call(Command::Dereg, json!({"mr": mr})).map(|_| ())
    }

    fn create_cq(&mut self, cqe: u32) -> Answer<Handle> {
        if let Some(cq) = self.stock.queues.take(&cqe) {
            return Ok(cq);
        }
        let cq = self.make(Command::CreateCq, json!({"cqe": cqe}), "cq")?;
        if self.is_in_a_hurry {
            self.stock.queues.keep(cqe, cq);
        }
        Ok(cq)
    }

    fn create_srq(&mut self, pd: Option<Handle>) -> Answer<Handle> {
        self.make(Command::CreateSrq, json!({"pd": pd, "max_wr": 64, "max_sge": 4}), "srq")
    }

    fn create_qp(&mut self, new: &NewQp) -> Answer<(Handle, u32)> {
        if let Some(known) = self.stock.qps.take(new) {
            return Ok(known);
        }
        let [sends, receives, sges, inline] = new.caps;
        let arguments = json!({
            "type": new.service, "pd": new.pd, "cq": new.cq, "srq": new.srq, "xrcd": new.xrcd, "max_send_wr": sends,
            "max_recv_wr": receives, "max_sge": sges, "max_inline": inline,
        });
        let answer = self.call(Command::CreateQp, arguments)?;
        let made = (number(&answer, "qp")?, number(&answer, "qpn")? as u32);
        if self.is_in_a_hurry && (new.pd, new.srq, new.xrcd) == (None, None, None) {
            self.stock.qps.keep(new.clone(), made);
        }
        Ok(made)
    }

    fn modify_qp(&mut self, qp: Handle, change: &Change) -> Answer<()> {
        if change.migration.is_some() || change.alternate.is_some() {
            self.can_migrate()?;
            self.sockets.listen_to_all();
        }
        // The agent adds what a step up needs and nobody said; a return to RTS needs nothing.
        let exact = change.to == "RTS" && change.sq_psn.is_none();
        let arguments = json!({
            "qp": qp, "to": change.to, "exact": exact, "access": change.access, "qkey": change.qkey,
            "path_mtu": change.path_mtu, "dest_qpn": change.dest.map(|(qpn, _)| qpn),
            "dgid": change.dest.map(|(_, gid)| gid.to_string()), "rq_psn": change.rq_psn,
            "sq_psn": change.sq_psn, "timeout": change.timeout, "retry_cnt": change.retry_cnt,
            "rnr_retry": change.rnr_retry, "min_rnr_timer": change.min_rnr_timer,
            "max_rd_atomic": change.max_rd_atomic, "max_dest_rd_atomic": change.max_dest_rd_atomic,
            "sqd_event": change.notify.then_some(true), "path_mig": change.migration,
            "alt_dgid": change.alternate.map(|(gid, _)| gid.to_string()),
            "alt_timeout": change.alternate.map(|(_, timeout)| timeout),
        });
        self.tell(Command::ModifyQp, arguments, true)
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
            let handle = match self.handles.get(&dgid.0) {
                Some(handle) => *handle,
                None => {
                    let arguments = json!({"dgid": dgid.to_string()});
                    self.make(Command::CreateAh, arguments, "ah")?
                }
            };
            self.handles.insert(dgid.0, handle);
            arguments["ah"] = handle.into();
            (arguments["remote_qpn"], arguments["remote_qkey"]) = (qpn.into(), qkey.into());
        }
        self.tell(Command::PostSend, arguments, false)
    }

    fn post_recv(&mut self, qp: Handle, wr_id: u64, pieces: &[Piece]) -> Answer<()> {
        let arguments = json!({"qp": qp, "wr_id": wr_id, "sge": segments(pieces)});
        self.tell(Command::PostRecv, arguments, false)
    }

    fn post_srq_recv(&mut self, srq: Handle, wr_id: u64, pieces: &[Piece]) -> Answer<()> {
        let arguments = json!({"srq": srq, "wr_id": wr_id, "sge": segments(pieces)});
        self.call(Command::PostRecv, arguments).map(|_| ())
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

    fn look(&mut self, queues: &[(Handle, Handle)], regions: &[(Handle, u64)]) -> Answer<Look> {
        let asked = queues.iter().flat_map(|(qp, cq)| {
            [(Command::QueryQp, json!({"qp": qp})), (Command::Poll, json!({"cq": cq, "max": 256}))]
        });
        let reads = regions.iter().map(|(mr, len)| (Command::Read, json!({"mr": mr, "length": len, "runs": true})));
        let answers = self.call_all(asked.chain(reads))?;
        let (ours, memory) = answers.split_at(answers.len().min(2 * queues.len()));
        let queues = ours.chunks(2).map(|pair| (state(&pair[0]), all_completed(&pair[1])));
        let memory = memory.iter().zip(regions).map(|(answer, (_, len))| runs(answer, *len as usize));
        Ok(Look { queues: queues.collect(), memory: memory.collect::<Answer<_>>()? })
    }

    fn events(&mut self) -> Answer<Vec<String>> {
        let answer = self.call(Command::Events, Value::Null)?;
        let events = answer["events"].as_array().into_iter().flatten();
        Ok(events.filter_map(|event| Some(event["type"].as_str()?.to_owned())).collect())
    }
}
