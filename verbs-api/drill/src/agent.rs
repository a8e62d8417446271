//! The target behind an agent: the far side obeys over TCP (`roxe_peer`), packets go through a UDP
//! socket of this host.
//!
//! The near side has an address of its own, because both ends of RoCEv2 use the same port: on one
//! host another loopback address. Touches the network and the clock.

use crate::target::{Answer, Card, Change, Completed, Datagram, FarSide, Handle, NewQp, Piece, Refused, Region};
use crate::target::{Target, Work};
use roxe_peer::client::{self, Client, ClientError};
use roxe_peer::protocol::{Command, from_hex, names, to_hex};
use roxe_wire::{Gid, NetHeader, UDP_PORT};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Queue pair numbers of the near side that one case may use; the next case has others, so that
/// what is late from the case before is known.
const NUMBERS: u32 = 16;
/// The first of them, and how many there are before they begin anew.
const FIRST: u32 = 0x10_0000;
const SPAN: u32 = 0x80_0000;
/// How long a packet may lie in the socket before the near side has a processor.
const JITTER: Duration = Duration::from_millis(3);
/// No packet is longer.
const MAX_DATAGRAM: usize = 9000;

/// A card that an agent drives.
pub struct AgentCard {
    client: Client,
    cards: Vec<Card>,
    /// The near side and the stranger, by address.
    sockets: BTreeMap<[u8; 16], UdpSocket>,
    start: Instant,
    /// The near side of the current case.
    near: Gid,
    first_near: u32,
    /// Address handles by destination.
    handles: BTreeMap<[u8; 16], Handle>,
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
            sockets: BTreeMap::new(),
            start: Instant::now(),
            near: Gid::default(),
            first_near: FIRST,
            handles: BTreeMap::new(),
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
            gids.filter_map(|gid| gid["gid"].as_str()?.parse::<Ipv6Addr>().ok()).map(gid_of).collect();
        let max_mtu = hello["port"]["active_mtu"].as_u64().unwrap_or(1024) as u32;
        let (device, version) = (self.client.name().to_owned(), &hello["version"]);
        let mut trouble = String::from("the card has no RoCE v2 address");
        for ipv4 in [true, false] {
            let fits = |gid: &&Gid| gid.is_ipv4() == ipv4 && !is_link_local(**gid);
            let Some(address) = addresses.iter().find(fits).copied() else { continue };
            let pair = match near_addresses(address, near).and_then(|pair| self.bind(pair)) {
                Ok(pair) => pair,
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
                near_port: UDP_PORT,
                jitter: JITTER,
                max_mtu,
            });
        }
        if self.cards.is_empty() { Err(Refused::broken(trouble)) } else { Ok(()) }
    }

    /// Opens a socket for the near side, and one for the stranger if there is an address for it.
    fn bind(&mut self, [near, stranger]: [Gid; 2]) -> io::Result<[Gid; 2]> {
        self.sockets.insert(near.0, roxe_net::udp::bare_link(near)?.into());
        if stranger.is_zero() {
            return Ok([near, stranger]);
        }
        match roxe_net::udp::bare_link(stranger) {
            Ok(socket) => self.sockets.insert(stranger.0, socket.into()),
            Err(_) => return Ok([near, Gid::default()]),
        };
        Ok([near, stranger])
    }

    fn call(&mut self, command: Command, arguments: Value) -> Answer<Value> {
        self.client.call(command, arguments).map_err(refused)
    }

    fn make(&mut self, command: Command, arguments: Value, handle: &str) -> Answer<Handle> {
        let answer = self.call(command, arguments)?;
        number(&answer, handle)
    }

    fn destroy(&mut self, kind: &str, handle: Handle) -> Answer<()> {
        self.call(Command::Destroy, json!({"kind": kind, "handle": handle})).map(|_| ())
    }

    /// Whether a packet is of this case, and none with which roxe looks how packets arrive.
    fn is_of_this_case(&self, packet: &[u8]) -> bool {
        let Some([0, a, b, c]) = packet.get(4..8).map(|word| [0, word[1], word[2], word[3]]) else { return true };
        let dqpn = u32::from_be_bytes([0, a, b, c]);
        let is_earlier = dqpn >= FIRST && dqpn < self.first_near;
        !is_earlier && !roxe_net::steer::is_probe(packet)
    }

    fn take(&self, socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<Option<Datagram>> {
        let (len, from) = socket.recv_from(buffer)?;
        let bytes = buffer.get(..len).unwrap_or_default().to_vec();
        if !self.is_of_this_case(&bytes) {
            return Ok(None);
        }
        let net = NetHeader {
            src: from.ip().into(),
            dst: self.near,
            src_port: from.port(),
            hop_limit: 64,
            ..Default::default()
        };
        // A socket does not show the identification; the one that explains the ICRC is taken.
        let ident = roxe_wire::icrc::solve_ident(&net, &bytes, 0).unwrap_or_default();
        Ok(Some(Datagram { net: NetHeader { ident, ..net }, bytes }))
    }
}

/// An agent refuses rights that it has no name for.
fn supported(access: u32) -> Answer<()> {
    let known = names::ACCESS.iter().fold(0, |known, (_, bit)| known | bit);
    if access & !known == 0 {
        return Ok(());
    }
    Err(Refused { text: "the agent does not know this right".into(), errno: libc::EOPNOTSUPP })
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

fn gid_of(address: Ipv6Addr) -> Gid {
    Gid(address.octets())
}

fn is_link_local(gid: Gid) -> bool {
    matches!(gid.to_ip(), IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The addresses of near side and stranger towards `card`: those that were given, neighbours on the
/// loopback interface, or where a packet to the card would leave.
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
            socket.connect((ip, UDP_PORT))?;
            let near = socket.local_addr()?.ip();
            if near == ip {
                return Err(io::Error::other("it is an address of this host; name another one for the near side"));
            }
            Ok([near.into(), Gid::default()])
        }
    }
}

fn number(answer: &Value, name: &str) -> Answer<u64> {
    answer[name].as_u64().ok_or_else(|| Refused::broken(format!("the agent does not say {name}: {answer}")))
}

fn segments(pieces: &[Piece]) -> Value {
    pieces.iter().map(|piece| json!({"addr": piece.addr, "length": piece.len, "lkey": piece.lkey})).collect()
}

impl Target for AgentCard {
    fn card(&self, ipv6: bool) -> Option<Card> {
        let card = self.cards.iter().find(|card| card.address.is_ipv4() != ipv6)?;
        Some(Card { first_near: self.first_near, ..card.clone() })
    }

    fn begin(&mut self, ipv6: bool) -> Answer<()> {
        self.call(Command::Reset, Value::Null)?;
        self.handles.clear();
        self.first_near = FIRST + (self.first_near - FIRST + NUMBERS) % SPAN;
        self.near = self.card(ipv6).map(|card| card.near[0]).unwrap_or_default();
        Ok(())
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn send(&mut self, datagram: &Datagram) -> Answer<()> {
        let Datagram { net, bytes } = datagram;
        let socket = self.sockets.get(&net.src.0).ok_or_else(|| Refused::broken("no socket of this address"))?;
        let options = socket2::SockRef::from(socket);
        let tos = u32::from(net.traffic_class);
        let set = if net.is_ipv4() { options.set_tos_v4(tos) } else { options.set_tclass_v6(tos) };
        set.and_then(|()| socket.send_to(bytes, (net.dst.to_ip(), UDP_PORT))).map_err(|error| io_error(&error))?;
        Ok(())
    }

    fn receive(&mut self, until: Duration) -> Answer<Option<(Duration, Datagram)>> {
        let mut buffer = [0; MAX_DATAGRAM];
        let socket = self.sockets.get(&self.near.0).ok_or_else(|| Refused::broken("no socket of this address"))?;
        loop {
            // What has come already is taken even if the time is over; 0 would mean without end.
            let wait = until.saturating_sub(self.now()).max(Duration::from_micros(1));
            socket.set_read_timeout(Some(wait)).map_err(|error| io_error(&error))?;
            match self.take(socket, &mut buffer) {
                Ok(Some(datagram)) => return Ok(Some((self.now(), datagram))),
                Ok(None) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                Err(error) => return Err(io_error(&error)),
            }
        }
    }

    fn pause(&mut self, until: Duration) {
        std::thread::sleep(until.saturating_sub(self.now()));
    }
}

impl FarSide for AgentCard {
    fn alloc_pd(&mut self) -> Answer<Handle> {
        self.make(Command::AllocPd, Value::Null, "pd")
    }

    fn register(&mut self, length: u64, access: u32, fill: u8, pd: Option<Handle>) -> Answer<Region> {
        supported(access)?;
        let answer = self.call(Command::Reg, json!({"length": length, "access": access, "fill": fill, "pd": pd}))?;
        let word = |name| number(&answer, name);
        Ok(Region { mr: word("mr")?, addr: word("addr")?, lkey: word("lkey")? as u32, rkey: word("rkey")? as u32 })
    }

    fn deregister(&mut self, mr: Handle) -> Answer<()> {
        self.call(Command::Dereg, json!({"mr": mr})).map(|_| ())
    }

    fn create_cq(&mut self, cqe: u32) -> Answer<Handle> {
        self.make(Command::CreateCq, json!({"cqe": cqe}), "cq")
    }

    fn create_srq(&mut self, pd: Option<Handle>) -> Answer<Handle> {
        self.make(Command::CreateSrq, json!({"pd": pd, "max_wr": 64, "max_sge": 4}), "srq")
    }

    fn create_qp(&mut self, new: &NewQp) -> Answer<(Handle, u32)> {
        let [sends, receives, sges, inline] = new.caps;
        let arguments = json!({
            "type": new.service, "pd": new.pd, "cq": new.cq, "srq": new.srq, "max_send_wr": sends,
            "max_recv_wr": receives, "max_sge": sges, "max_inline": inline,
        });
        let answer = self.call(Command::CreateQp, arguments)?;
        Ok((number(&answer, "qp")?, number(&answer, "qpn")? as u32))
    }

    fn modify_qp(&mut self, qp: Handle, change: &Change) -> Answer<()> {
        supported(change.access.unwrap_or_default())?;
        // The agent adds what a step up needs and nobody said; a return to RTS needs nothing.
        let exact = change.to == "RTS" && change.sq_psn.is_none();
        let arguments = json!({
            "qp": qp, "to": change.to, "exact": exact, "access": change.access, "qkey": change.qkey,
            "path_mtu": change.path_mtu, "dest_qpn": change.dest.map(|(qpn, _)| qpn),
            "dgid": change.dest.map(|(_, gid)| Ipv6Addr::from(gid.0).to_string()), "rq_psn": change.rq_psn,
            "sq_psn": change.sq_psn, "timeout": change.timeout, "retry_cnt": change.retry_cnt,
            "rnr_retry": change.rnr_retry, "min_rnr_timer": change.min_rnr_timer,
            "max_rd_atomic": change.max_rd_atomic, "max_dest_rd_atomic": change.max_dest_rd_atomic,
            "sqd_event": change.notify.then_some(true),
        });
        self.call(Command::ModifyQp, arguments).map(|_| ())
    }

    fn query_qp(&mut self, qp: Handle) -> Answer<String> {
        let answer = self.call(Command::QueryQp, json!({"qp": qp}))?;
        Ok(answer["state"].as_str().unwrap_or_default().into())
    }

    fn destroy_qp(&mut self, qp: Handle) -> Answer<()> {
        self.destroy("qp", qp)
    }

    fn post_send(&mut self, qp: Handle, work: &Work) -> Answer<()> {
        let mut arguments = json!({
            "qp": qp, "wr_id": work.wr_id, "opcode": work.opcode, "flags": work.flags,
            "remote_addr": work.remote_addr, "rkey": work.rkey, "compare_add": work.compare_add, "swap": work.swap,
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
                    let arguments = json!({"dgid": Ipv6Addr::from(dgid.0).to_string()});
                    self.make(Command::CreateAh, arguments, "ah")?
                }
            };
            self.handles.insert(dgid.0, handle);
            arguments["ah"] = handle.into();
            (arguments["remote_qpn"], arguments["remote_qkey"]) = (qpn.into(), qkey.into());
        }
        self.call(Command::PostSend, arguments).map(|_| ())
    }

    fn post_recv(&mut self, qp: Handle, wr_id: u64, pieces: &[Piece]) -> Answer<()> {
        let arguments = json!({"qp": qp, "wr_id": wr_id, "sge": segments(pieces)});
        self.call(Command::PostRecv, arguments).map(|_| ())
    }

    fn post_srq_recv(&mut self, srq: Handle, wr_id: u64, pieces: &[Piece]) -> Answer<()> {
        let arguments = json!({"srq": srq, "wr_id": wr_id, "sge": segments(pieces)});
        self.call(Command::PostRecv, arguments).map(|_| ())
    }

    fn poll(&mut self, cq: Handle) -> Answer<Vec<Completed>> {
        let answer = self.call(Command::Poll, json!({"cq": cq, "max": 256}))?;
        Ok(answer["completions"].as_array().into_iter().flatten().map(completed).collect())
    }

    fn read(&mut self, mr: Handle, at: u64, len: u64) -> Answer<Vec<u8>> {
        let answer = self.call(Command::Read, json!({"mr": mr, "offset": at, "length": len}))?;
        let bytes = answer["hex"].as_str().and_then(from_hex);
        bytes.ok_or_else(|| Refused::broken("the agent does not say the bytes"))
    }

    fn write(&mut self, mr: Handle, at: u64, bytes: &[u8]) -> Answer<()> {
        self.call(Command::Write, json!({"mr": mr, "offset": at, "hex": to_hex(bytes)})).map(|_| ())
    }

    fn events(&mut self) -> Answer<Vec<String>> {
        let answer = self.call(Command::Events, Value::Null)?;
        let events = answer["events"].as_array().into_iter().flatten();
        Ok(events.filter_map(|event| Some(event["type"].as_str()?.to_owned())).collect())
    }
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
        qpn: word("qpn").unwrap_or_default(),
    }
}
