//! Fuzz target: a connection manager whose program calls verbs, and which receives any messages
//! that a faulty peer or a host without a connection can send.

use roxe_sim::{Choices, Script};
use roxe_transport::cm::{
    Accept, Accepts, Addresses, Alternate, AlternateAnswer, Cm, Connect, Cx, Event, EventKind, Listen, Refusal,
    Resolution, Resolve, Route, Settings, State,
};
use roxe_transport::time::Instant;
use roxe_wire::cm::{
    Answered, Apr, AprStatus, CommId, Drep, Dreq, Guid, Info, IpCmHeader, IpPair, Lap, MAD_LEN, Mad, Message, Mra,
    PrivateData, Rej, RejReason, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq, SidrStatus, TimeCode, TransactionId,
    Transport,
};
use roxe_wire::{Gid, PathMtu, Psn, Qkey, Qpn};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Services for which the program listens: one with IP addresses, one with a mask.
const SERVICES: [ServiceId; 2] = [ServiceId(0x0106_1d2f), ServiceId(0x013f_0000)];
const GUIDS: [Guid; 3] = [Guid(2), Guid(3), Guid(0)];
const BACKLOG: usize = 3;
/// Maximum number of connections and lookups of the connection manager.
const MAX_CONNECTIONS: usize = 12;
/// Maximum wait in nanoseconds, whatever the peer sends; the last wait is that of TimeWait.
const LONGEST_WAIT: u64 = 200_000_000_000;

/// The input is the verbs of a program, the messages of peers to its connection manager, and the
/// times between them.
///
/// Properties: no panic; a message causes at most two replies, which parse to equal messages; a
/// message from an address other than the peer's changes no connection; the end of a connection is
/// reported once, as its last event; the number of connections is bounded; once the program has
/// destroyed all connections, the connection manager is empty in bounded time.
///
/// # Panics
/// If a property does not hold.
pub fn cm_machine(data: &[u8]) {
    let mut host = Host::new(Script::new(data));
    while !host.script.is_empty() {
        host.step();
    }
    host.end();
}

/// The program's record of a connection or lookup.
#[derive(Debug, Default)]
struct Entry {
    /// True once the connection or lookup has ended: its id must not appear in another event.
    is_over: bool,
    /// Addresses of both ends; `None` for a lookup.
    route: Option<Route>,
}

struct Host<'a> {
    cm: Cm,
    script: Script<'a>,
    now: Instant,
    drawn: u64,
    known: BTreeMap<CommId, Entry>,
    /// Transaction ID of the newest LAP.
    tid: TransactionId,
    qpns: u32,
}

fn address(last: u8) -> Gid {
    Ipv4Addr::new(10, 0, 0, last).into()
}

impl<'a> Host<'a> {
    fn new(script: Script<'a>) -> Self {
        let mut cm = Cm::new(Settings { prefix: 0x123, max_connections: MAX_CONNECTIONS, ..Settings::new(Guid(1)) });
        let by_address = Listen { addresses: Addresses::Ip, ..Listen::new(SERVICES[0], Accepts::Both, BACKLOG) };
        let masked = Listen { service_mask: !0xffff, ..Listen::new(SERVICES[1], Accepts::Both, BACKLOG) };
        for listen in [by_address, masked] {
            cm.listen(listen).expect("listen on two services");
        }
        let (known, tid) = (BTreeMap::new(), TransactionId(0));
        Self { cm, script, now: Instant(1_000_000_000), drawn: 0, known, tid, qpns: 0x100 }
    }

    fn step(&mut self) {
        match self.script.below(8) {
            0 => self.connect_or_resolve(),
            1 => self.call_verb(),
            2 => self.wait(),
            3 => self.raw_message(),
            _ => self.valid_message(),
        }
        self.drain(usize::MAX);
    }

    fn call<R>(&mut self, verb: impl FnOnce(&mut Cm, &mut Cx<'_>) -> R) -> R {
        let Self { cm, now, drawn, .. } = self;
        let mut random = || {
            *drawn += 1;
            // Few different ids, so that the input can guess them.
            *drawn % 16
        };
        verb(cm, &mut Cx { now: *now, random: &mut random })
    }

    /// Lets the program connect to a service, or look one up.
    fn connect_or_resolve(&mut self) {
        let route = Route { local: address(1), remote: address(self.script.pick(&[2, 3])) };
        self.qpns += 1;
        let (qpn, psn) = (Qpn::new(self.qpns), Psn::new(7));
        let lookup = self.script.chance_per_mille(300);
        let asked = if lookup {
            self.call(|cm, cx| cm.resolve(cx, &Resolve::new(route, SERVICES[0])))
        } else {
            let transport = self.script.pick(&[Transport::Rc, Transport::Xrc]);
            let retry_for = if transport == Transport::Rc { Duration::from_millis(300) } else { Duration::ZERO };
            let connect = Connect { transport, retry_for, ..Connect::new(route, SERVICES[0], qpn, psn) };
            self.call(|cm, cx| cm.connect(cx, &connect))
        };
        let Ok(id) = asked else { return assert!(self.cm.len() >= MAX_CONNECTIONS, "refused below the limit") };
        let known = Entry { is_over: false, route: (!lookup).then_some(route) };
        // The id of an ended connection may be assigned again.
        assert!(self.known.insert(id, known).is_none_or(|old| old.is_over), "{id} is taken");
    }

    /// Returns one of the program's ids, or an unknown one.
    fn id(&mut self) -> CommId {
        let index = self.script.below(20) as usize;
        let newest = self.known.keys().rev().nth(index).copied();
        newest.unwrap_or_else(|| CommId::with_prefix(0x123, index as u32))
    }

    /// Lets the program call a legal or illegal verb on a connection.
    fn call_verb(&mut self) {
        let id = self.id();
        let (qpn, time) = (Qpn::new(0x80), TimeCode::new(self.script.below(32) as u8));
        let status = self.script.pick(&[AprStatus::Success, AprStatus::Reject]);
        let verb = self.script.below(12);
        let done = self.call(|cm, cx| match verb {
            0 | 1 => cm.accept(cx, id, &Accept::new(qpn, Psn::new(9))),
            2 | 3 => cm.confirm(id, &PrivateData::EMPTY),
            4 => cm.reject(id, &Refusal::new(PrivateData::EMPTY)),
            5 => cm.delay(id, time),
            6 => cm.establish(id),
            7 => cm.disconnect(cx, id),
            8 => cm.enable_alternate_events(id, true),
            9 => cm.load_alternate(cx, id, &Alternate::new(Route { local: address(11), remote: address(12) })),
            10 => cm.answer_alternate(id, &AlternateAnswer::new(status)).and_then(|()| cm.on_migrated(id)),
            _ => cm.answer(id, &Resolution::refused(SidrStatus::NoQp)).or_else(|_| cm.destroy(cx, id)),
        });
        let is_over = self.known.get(&id).is_none_or(|known| known.is_over);
        assert!(done.is_err() || !is_over, "a verb on the ended connection {id}");
        if done.is_ok() && matches!(verb, 4 | 11) {
            self.known.entry(id).or_default().is_over = true;
        }
    }

    fn wait(&mut self) {
        let Some(due) = self.cm.poll_timeout() else { return };
        assert!(due.0 <= self.now.0 + LONGEST_WAIT, "the wait exceeds LONGEST_WAIT");
        self.now = self.now.max(due);
        self.cm.handle_timeout(self.now);
        assert!(self.cm.poll_timeout().is_none_or(|next| next > self.now), "a handled deadline is due again");
    }

    fn route(&mut self) -> Route {
        Route { local: address(self.script.pick(&[1, 1, 1, 11])), remote: address(self.script.pick(&[2, 2, 3, 12])) }
    }

    /// Delivers a MAD that contains bytes of the input.
    fn raw_message(&mut self) {
        let mut bytes = Mad { tid: self.tid, modifier: 0, message: Rtu::default().into() }.to_bytes();
        bytes[17] = 0x10 + self.script.below(12) as u8;
        let from = 24 + self.script.below((MAD_LEN - 24) as u32) as usize;
        for byte in bytes.iter_mut().skip(from).take(24) {
            *byte = self.script.below(256) as u8;
        }
        let route = self.route();
        if let Ok(mad) = Mad::parse(&bytes) {
            self.deliver(route, &mad);
        }
    }

    /// Delivers a well-formed message with ids that the connection manager may know.
    fn valid_message(&mut self) {
        let route = self.route();
        let (ours, theirs) = (self.id(), CommId(self.script.below(4)));
        let message = match self.script.below(11) {
            0 => self.req(route, theirs).into(),
            1 => self.rep(ours, theirs).into(),
            2 => Rtu { local_comm_id: theirs, remote_comm_id: ours, ..Rtu::default() }.into(),
            3 => self.rej(ours, theirs).into(),
            4 => self.mra(ours, theirs).into(),
            5 => {
                let remote_qpn = Qpn::new(self.script.pick(&[0x80, self.qpns]));
                Dreq { local_comm_id: theirs, remote_comm_id: ours, remote_qpn, ..Dreq::default() }.into()
            }
            6 => Drep { local_comm_id: theirs, remote_comm_id: ours, ..Drep::default() }.into(),
            7 => self.sidr_req(route, theirs).into(),
            8 => self.sidr_rep(ours).into(),
            9 => self.lap(ours, theirs).into(),
            _ => self.apr(ours, theirs).into(),
        };
        let (tid, modifier) = (self.script.pick(&[self.tid, TransactionId(9)]), self.script.below(2));
        self.deliver(route, &Mad { tid, modifier, message });
    }

    fn addresses<const N: usize>(&mut self, route: Route) -> PrivateData<N> {
        let addresses = IpPair::new(route.remote.to_ip(), route.local.to_ip());
        let header = addresses.map(|addresses| IpCmHeader { src_port: 7, addresses });
        header
            .filter(|_| !self.script.chance_per_mille(100))
            .and_then(|header| header.with_program_data(b"hi"))
            .unwrap_or(PrivateData::EMPTY)
    }

    fn req(&mut self, route: Route, theirs: CommId) -> Req {
        let mut req = Req {
            local_comm_id: theirs,
            service_id: self.script.pick(&[SERVICES[0], SERVICES[1], ServiceId(1)]),
            local_ca_guid: self.script.pick(&GUIDS),
            local_qpn: Qpn::new(self.script.below(3)),
            local_cm_response_timeout: TimeCode::new(self.script.below(32) as u8),
            path_mtu: PathMtu::Mtu1024.into(),
            private_data: self.addresses(route),
            ..Req::default()
        };
        (req.primary.local_gid, req.primary.remote_gid) = (route.remote, route.local);
        req.primary.local_ack_timeout = TimeCode::new(self.script.below(32) as u8);
        req
    }

    fn rep(&mut self, ours: CommId, theirs: CommId) -> Rep {
        Rep {
            local_comm_id: theirs,
            remote_comm_id: ours,
            local_qpn: Qpn::new(self.script.below(3)),
            local_ca_guid: self.script.pick(&GUIDS),
            target_ack_delay: TimeCode::new(self.script.below(32) as u8),
            ..Rep::default()
        }
    }

    fn answered(&mut self) -> Answered {
        self.script.pick(&[Answered::Req, Answered::Rep, Answered::Neither, Answered::Other(3)])
    }

    fn rej(&mut self, ours: CommId, theirs: CommId) -> Rej {
        let (answered, guid) = (self.answered(), self.script.pick(&GUIDS));
        let reason = self.script.pick(&[RejReason::ConsumerDefined, RejReason::StaleConnection, RejReason::Timeout]);
        let info = Info::new(&guid.0.to_be_bytes()).unwrap_or_default();
        Rej { local_comm_id: theirs, remote_comm_id: ours, answered, info, reason, private_data: PrivateData::EMPTY }
    }

    fn mra(&mut self, ours: CommId, theirs: CommId) -> Mra {
        let (answered, service_timeout) = (self.answered(), TimeCode::new(self.script.below(32) as u8));
        let private_data = PrivateData::EMPTY;
        Mra { local_comm_id: theirs, remote_comm_id: ours, answered, service_timeout, private_data }
    }

    fn sidr_req(&mut self, route: Route, theirs: CommId) -> SidrReq {
        let service_id = self.script.pick(&[SERVICES[0], SERVICES[1], ServiceId(1)]);
        let private_data = self.addresses(route);
        SidrReq { request_id: theirs, pkey: roxe_wire::Pkey::DEFAULT, service_id, private_data }
    }

    fn sidr_rep(&mut self, ours: CommId) -> SidrRep {
        SidrRep {
            request_id: ours,
            status: self.script.pick(&[SidrStatus::Success, SidrStatus::NoQp]),
            info: Info::EMPTY,
            vendor_id: Default::default(),
            qpn: Qpn::new(5),
            service_id: SERVICES[0],
            qkey: Qkey::default(),
            private_data: PrivateData::EMPTY,
        }
    }

    fn lap(&mut self, ours: CommId, theirs: CommId) -> Lap {
        let remote_qpn = Qpn::new(self.script.pick(&[0x80, self.qpns]));
        let (local_gid, remote_gid) = (address(self.script.pick(&[12, 2])), address(self.script.pick(&[11, 1])));
        Lap { local_comm_id: theirs, remote_comm_id: ours, remote_qpn, local_gid, remote_gid, ..Lap::default() }
    }

    fn apr(&mut self, ours: CommId, theirs: CommId) -> Apr {
        let status = self.script.pick(&[AprStatus::Success, AprStatus::InvalidGid]);
        let (info, private_data) = (Info::EMPTY, PrivateData::EMPTY);
        Apr { local_comm_id: theirs, remote_comm_id: ours, info, status, private_data }
    }

    /// Delivers a message and checks that it affects only its connection.
    fn deliver(&mut self, route: Route, mad: &Mad) {
        let others = self.others(route, &mad.message);
        // The result only selects a counter.
        let _ = self.call(|cm, cx| cm.handle_message(cx, route, mad));
        for (id, before) in others {
            assert_eq!(self.cm.state(id), before, "{mad} changed the connection {id} of another peer");
        }
        self.drain(2);
        assert!(self.cm.len() <= MAX_CONNECTIONS, "more than MAX_CONNECTIONS after {mad}");
    }

    /// Returns the states of the connections that a peer at `route` must not change. A peer that
    /// opens a new connection on a queue pair ends its previous one, whatever its local address.
    fn others(&self, route: Route, message: &Message) -> Vec<(CommId, Option<State>)> {
        let is_new = matches!(message, Message::Req(_) | Message::Rep(_));
        let is_foreign = |own: Route| own != route && !(is_new && own.remote == route.remote);
        let is_entry_foreign = |known: &Entry| !known.is_over && known.route.is_some_and(is_foreign);
        // Messages about a connection with an alternate path may arrive from that path.
        let alternates = [address(11), address(12)];
        let is_unknown = !alternates.contains(&route.local) && !alternates.contains(&route.remote);
        let all = self.known.iter().filter(|(_, known)| is_unknown && is_entry_foreign(known));
        all.map(|(id, _)| (*id, self.cm.state(*id))).collect()
    }

    /// Takes all outgoing messages, at most `max`, and all events.
    fn drain(&mut self, max: usize) {
        let mut sent = 0;
        while let Some(out) = self.cm.poll_transmit() {
            assert_eq!(Mad::parse(&out.mad.to_bytes()).as_ref(), Ok(&out.mad));
            if matches!(out.mad.message, Message::Lap(_)) {
                self.tid = out.mad.tid;
            }
            sent += 1;
        }
        assert!(sent <= max, "{sent} replies to one message");
        while let Some(event) = self.cm.poll_event() {
            self.record_event(&event);
        }
    }

    fn record_event(&mut self, Event { id, kind }: &Event) {
        if let EventKind::ConnectRequest(origin, ..) | EventKind::LookupRequest(origin, ..) = kind {
            let route = matches!(kind, EventKind::ConnectRequest(..)).then_some(origin.route);
            let old = self.known.insert(*id, Entry { is_over: false, route });
            assert!(old.is_none_or(|old| old.is_over), "{id} is taken");
            return;
        }
        let known = self.known.get_mut(id).filter(|known| !known.is_over);
        let known = known.unwrap_or_else(|| panic!("{kind:?} of {id}, which has ended"));
        known.is_over = matches!(
            kind,
            EventKind::Rejected(_)
                | EventKind::Stale
                | EventKind::Unreachable
                | EventKind::TimeWaitExit
                | EventKind::LookupReply(..)
        );
    }

    /// Lets the program destroy all connections and listeners.
    fn end(&mut self) {
        let all: Vec<_> = self.known.iter().filter(|(_, known)| !known.is_over).map(|(id, _)| *id).collect();
        for id in all {
            self.call(|cm, cx| cm.destroy(cx, id)).expect("destroy an open connection");
            self.known.entry(id).or_default().is_over = true;
        }
        self.drain(usize::MAX);
        for _ in 0..MAX_CONNECTIONS * 64 {
            self.wait();
            self.drain(usize::MAX);
        }
        assert!(self.cm.is_empty(), "connections are left: {:?}", self.cm);
    }
}
