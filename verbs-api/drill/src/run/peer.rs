//! The steps of the far side: verbs, checks of its state, connections by librdmacm, and optional
//! features (XRC, memory windows, multicast groups).

use super::state::{CardQp, Run, Srq, Stop, differs, known};
use crate::craft::bytes_differ;
use crate::number::Number;
use crate::script::steps::{
    Bind, CmStep, Data, ExpectedAttributes, ExpectedCmEvent, ExpectedCompletion, Modify, Numbers, Peer, Post, QpSpec,
    Sge, Tag,
};
use crate::target::{
    Answer, Bound, Change, Completed, ConnParam, ConnectionEvent, Event, NewQp, Piece, Region, TagWork, Work,
};
use roxe_wire::net::is_checksum_correct;
use std::collections::BTreeMap;
use std::time::Duration;

/// Interval between two queries of the far side.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Default code of the ACK timeout, 268 ms. It is longer than a busy host delays the near side, and
/// shorter than a step waits for a packet.
const ACK_TIMEOUT: u64 = 16;
/// Entries of the completion queue of an XRC SRQ.
const SRQ_CQ_ENTRIES: u32 = 256;
/// Port spaces in a service id (annex A11).
const TCP_SPACE: u64 = 0x0106;
const UDP_SPACE: u64 = 0x0111;
/// Queue pair number of completions of an SRQ with its own completion queue: any queue pair may
/// have received the message, and an operation on tags belongs to no queue pair.
const ANY_QPN: u32 = u32::MAX;
/// Flags of `enum ibv_wc_flags`.
const GRH: u32 = 1;
const TM_SYNC_REQ: u32 = 1 << 4;
const TM_MATCH: u32 = 1 << 5;
const TM_DATA_VALID: u32 = 1 << 6;

impl Run<'_> {
    pub(super) fn peer(&mut self, peer: &Peer) -> Result<(), Stop> {
        match peer {
            Peer::Refused(verb) => match self.peer(verb) {
                Ok(()) => check_refusal(Ok(()), true)?,
                Err(Stop::Refused(refused)) if !refused.is_unsupported() => check_refusal(Err(refused), true)?,
                Err(stop) => return Err(stop),
            },
            Peer::Pd(name) => {
                let pd = self.target.alloc_pd()?;
                self.objects.domains.insert(name.clone(), pd);
            }
            Peer::Register { name, length, access, fill, pd, edge } => {
                let length = length.value(&self.names)?;
                let fill = fill.value(&self.names)?;
                let pd = self.objects.domain(pd.as_ref())?;
                let edge = self.optional(edge.as_ref())?;
                let region = self.target.register(length, *access, fill as u8, pd, edge)?;
                self.store_name(name, "addr", region.addr);
                self.store_name(name, "rkey", region.rkey.into());
                self.store_name(name, "lkey", region.lkey.into());
                self.objects.regions.insert(name.clone(), region);
            }
            Peer::Deregister(name) => self.target.deregister(self.objects.region(name)?.mr)?,
            Peer::Reregister { mr, access } => {
                let region = self.objects.region(mr)?;
                let [lkey, rkey] = self.target.reregister(region.mr, *access)?;
                self.store_name(mr, "rkey", rkey.into());
                self.store_name(mr, "lkey", lkey.into());
                self.objects.regions.insert(mr.clone(), Region { lkey, rkey, ..region });
            }
            Peer::Srq { name, pd, xrcd, tags } => match tags {
                Some(tags) => self.create_tag_srq(name, pd.as_ref(), tags)?,
                None => self.create_srq(name, pd.as_ref(), xrcd.as_ref())?,
            },
            Peer::Tag(tag) => self.post_tag(tag)?,
            Peer::Qp(spec) => self.create_qp(spec)?,
            Peer::Restart(spec) => self.restart(spec)?,
            Peer::Modify(modify) => self.modify(modify)?,
            Peer::Destroy(name) => self.target.destroy_qp(self.objects.card_qp(Some(name))?.qp)?,
            Peer::Post(post) => {
                let start = self.target.now();
                self.post(post)?;
                self.record_delay(start);
            }
            Peer::Recv { queue, id, sges } => {
                let (id, pieces) = (id.value(&self.names)?, self.pieces(sges)?);
                match self.objects.srqs.get(queue) {
                    Some(queue) => self.target.post_srq_recv(queue.srq, id, &pieces)?,
                    None => self.target.post_recv(self.objects.card_qp(Some(queue))?.qp, id, &pieces)?,
                }
            }
            Peer::Write { mr, at, data } => {
                let at = at.value(&self.names)?;
                let bytes = data.bytes(&self.names)?;
                self.target.write(self.objects.region(mr)?.mr, at, &bytes)?;
            }
            Peer::Xrcd(name) => {
                let xrcd = self.target.open_xrcd()?;
                self.objects.xrc_domains.insert(name.clone(), xrcd);
            }
            Peer::Window { name, kind, pd } => {
                let (kind, pd) = (kind.value(&self.names)?, self.objects.domain(pd.as_ref())?);
                let (window, rkey) = self.target.alloc_window(kind as u32, pd)?;
                self.store_name(name, "rkey", rkey.into());
                self.objects.windows.insert(name.clone(), window);
            }
            Peer::Bind(bind) => self.bind(bind)?,
            Peer::Limit { srq, limit } => {
                let (srq, limit) = (known(&self.objects.srqs, "SRQ", srq)?.srq, limit.value(&self.names)?);
                self.target.set_limit(srq, limit as u32)?;
            }
            Peer::Member { qp, group, joins } => {
                self.target.set_member(self.objects.card_qp(Some(qp))?.qp, (*group).into(), *joins)?;
            }
            Peer::Arm { qp, solicited } => {
                let cq = self.completing_qp(qp)?.cq;
                self.target.arm(cq, *solicited)?;
            }
            Peer::Resize { qp, entries } => {
                let (cq, entries) = (self.completing_qp(qp)?.cq, entries.value(&self.names)?);
                self.target.resize(cq, entries as u32)?;
            }
            Peer::Connection(name, act) => self.connection(name, act)?,
            query => self.query(query)?,
        }
        Ok(())
    }

    fn modify(&mut self, modify: &Modify) -> Result<(), Stop> {
        let card_qp = self.objects.card_qp(Some(&modify.qp))?.clone();
        let mut change = self.change(&modify.numbers)?;
        if modify.to == "RTR" {
            change = Change { qkey: change.qkey, ..self.to_rtr(&modify.numbers, &card_qp)? };
        }
        change.to.clone_from(&modify.to);
        change.migration.clone_from(&modify.migration);
        change.access = modify.access;
        if modify.alternate {
            let stranger = self.card.near[1];
            if stranger.is_zero() {
                return Err(Stop::Unsupported("the near side has one address".into()));
            }
            let timeout = self.attribute(&modify.numbers, "alt_timeout", 14)?;
            change.alternate = Some((stranger, timeout as u8));
            self.objects.has_alternate = true;
        }
        check_refusal(self.target.modify_qp(card_qp.qp, &change), modify.refused)
    }

    /// Checks the state of the far side.
    fn query(&mut self, peer: &Peer) -> Result<(), Stop> {
        match peer {
            Peer::Complete { qp, wanted, within } => self.complete(qp, wanted, within),
            Peer::Idle { qp, time } => {
                let card_qp = self.completing_qp(qp)?;
                self.pass(time)?;
                match self.completion(&card_qp)? {
                    None => Ok(()),
                    Some(done) => Err(differs(format!("no completion of {qp}"), done.to_string())),
                }
            }
            Peer::State { qp, state, within } => {
                let handle = self.objects.card_qp(Some(qp))?.qp;
                let mut last = String::new();
                let reached = self.wait(within, |run| {
                    last = run.target.query_qp(handle)?;
                    Ok((last == *state).then_some(()))
                })?;
                reached.ok_or_else(|| differs(format!("{qp} is in {state}"), format!("it is in {last}")))
            }
            Peer::Attributes(wanted) => self.attributes(wanted),
            Peer::Memory { mr, at, data, within } => {
                let region = self.objects.region(mr)?;
                let at = at.value(&self.names)?;
                let wanted = data.bytes(&self.names)?;
                let mut differ = None;
                self.wait(within, |run| {
                    let is = run.target.read(region.mr, at, wanted.len() as u64)?;
                    differ = bytes_differ(&format!("{mr} at offset {at}"), &wanted, &is);
                    Ok(differ.is_none().then_some(()))
                })?;
                differ.map_or(Ok(()), |text| Err(differs(format!("{} bytes of {mr}", wanted.len()), text)))
            }
            Peer::Checksum { mr, at, len } => {
                let region = self.objects.region(mr)?;
                let at = at.value(&self.names)?;
                let bytes = self.target.read(region.mr, at, len.value(&self.names)?)?;
                if is_checksum_correct(&bytes) {
                    Ok(())
                } else {
                    Err(differs(format!("a correct Internet checksum in {mr}"), format!("{bytes:02x?}")))
                }
            }
            Peer::Event { name, of, within } => {
                let found = self.wait(within, |run| {
                    let new = run.target.events()?;
                    run.objects.events.extend(new);
                    let matches = |event: &Event| {
                        event.name == *name && of.as_ref().is_none_or(|of| run.objects.is_of(event, of))
                    };
                    let at = run.objects.events.iter().position(matches);
                    Ok(at.map(|at| run.objects.events.remove(at)))
                })?;
                let source = of.as_ref().map_or_else(String::new, |source| format!(" of {source}"));
                found
                    .map(|_| ())
                    .ok_or_else(|| differs(format!("event {name}{source}"), self.objects.unconsumed_events()))
            }
            Peer::NoEvent { time } => {
                self.pass(time)?;
                let new = self.target.events()?;
                self.objects.events.extend(new);
                match self.objects.events.first() {
                    None => Ok(()),
                    Some(_) => Err(differs("no event".into(), self.objects.unconsumed_events())),
                }
            }
            Peer::Wakes { qp, within } => {
                let cq = self.completing_qp(qp)?.cq;
                let woken = self.wait(within, |run| Ok(run.target.is_woken(cq)?.then_some(())))?;
                woken.ok_or_else(|| differs(format!("an event of the completion queue of {qp}"), "nothing".into()))
            }
            Peer::Sleeps { qp, time } => {
                let cq = self.completing_qp(qp)?.cq;
                self.pass(time)?;
                match self.target.is_woken(cq)? {
                    false => Ok(()),
                    true => Err(differs(format!("no event of the completion queue of {qp}"), "an event".into())),
                }
            }
            _ => Ok(()),
        }
    }

    /// Calls `query` until it returns a value or the time has passed.
    pub(super) fn wait<T>(
        &mut self,
        within: &Number,
        mut query: impl FnMut(&mut Self) -> Answer<Option<T>>,
    ) -> Result<Option<T>, Stop> {
        let deadline = self.target.now() + self.time(within)?;
        loop {
            if let Some(answer) = query(self)? {
                return Ok(Some(answer));
            }
            let now = self.target.now();
            if now >= deadline {
                return Ok(None);
            }
            self.target.pause(deadline.min(now + POLL_INTERVAL));
        }
    }

    /// Stores a value under the name `OBJECT.PART`.
    pub(super) fn store_name(&mut self, object: &str, part: &str, value: u64) {
        self.names.insert(format!("{object}.{part}"), value);
    }

    /// Fails if a query of a queue pair reports other attributes than expected.
    fn attributes(&mut self, wanted: &ExpectedAttributes) -> Result<(), Stop> {
        let ExpectedAttributes { qp, numbers, access, migration } = wanted;
        let is = self.target.attributes(self.objects.card_qp(Some(qp))?.qp)?;
        self.compare(&format!("{qp} has"), numbers, &is.numbers)?;
        if let Some(access) = access.filter(|access| *access != is.access) {
            return Err(differs(format!("{qp} has the rights {access:#x}"), format!("{:#x}", is.access)));
        }
        match migration.as_ref().filter(|migration| **migration != is.migration) {
            Some(migration) => Err(differs(format!("{qp} is {migration}"), is.migration)),
            None => Ok(()),
        }
    }

    /// Fails if one of the numbers differs from the expected one.
    fn compare(&self, what: &str, wanted: &Numbers, is: &BTreeMap<&'static str, u64>) -> Result<(), Stop> {
        for (name, number) in wanted {
            let (wanted, is) = (number.value(&self.names)?, is.get(name).copied());
            if is != Some(wanted) {
                let is = is.map_or_else(|| "nothing".to_owned(), |is| format!("{name}={is}"));
                return Err(differs(format!("{what} {name}={wanted}"), is));
            }
        }
        Ok(())
    }

    fn pieces(&self, sges: &[Sge]) -> Result<Vec<Piece>, Stop> {
        let piece = |sge: &Sge| {
            let (at, len) = (sge.at.value(&self.names)?, sge.len.value(&self.names)?);
            let region = self.objects.region(&sge.mr)?;
            Ok(Piece { addr: region.addr.wrapping_add(at), len: len as u32, lkey: region.lkey })
        };
        sges.iter().map(piece).collect()
    }

    /// Returns an attribute, or its default.
    pub(super) fn attribute(&self, numbers: &Numbers, name: &str, default: u64) -> Result<u64, Stop> {
        Ok(numbers.get(name).map_or(Ok(default), |number| number.value(&self.names))?)
    }

    /// Returns a change of these attributes.
    fn change(&self, numbers: &Numbers) -> Result<Change, Stop> {
        let get = |name| numbers.get(name).map(|number| number.value(&self.names)).transpose();
        let byte = |name| Ok::<_, Stop>(get(name)?.map(|value| value as u8));
        let word = |name| Ok::<_, Stop>(get(name)?.map(|value| value as u32));
        Ok(Change {
            qkey: word("qkey")?,
            path_mtu: word("mtu")?,
            rq_psn: word("rq_psn")?,
            sq_psn: word("sq_psn")?,
            timeout: byte("timeout")?,
            retry_cnt: byte("retry_cnt")?,
            rnr_retry: byte("rnr_retry")?,
            min_rnr_timer: byte("rnr_timer")?,
            max_rd_atomic: byte("rd_atomic")?,
            max_dest_rd_atomic: byte("dest_rd_atomic")?,
            traffic_class: self.traffic_class(numbers)?,
            hop_limit: byte("hop_limit")?,
            notify: get("notify")?.is_some_and(|value| value != 0),
            ..Change::default()
        })
    }

    fn create_qp(&mut self, spec: &QpSpec) -> Result<(), Stop> {
        let number = |name, default| self.attribute(&spec.numbers, name, default);
        let qkey = number("qkey", 0x1111_1111)? as u32;
        let caps = [number("sends", 64)?, number("receives", 64)?, number("sges", 4)?, number("inline", self.inline)?];
        let cqe = number("cqe", 256)? as u32;
        let first_numbers = self.first_numbers(spec)?;
        let srq = spec.srq.as_ref().map(|name| Ok::<_, Stop>(known(&self.objects.srqs, "SRQ", name)?.srq));
        let xrcd = self.objects.xrc_domain(spec.xrcd.as_ref())?;
        let cq = self.target.create_cq(cqe)?;
        let new = NewQp {
            service: spec.service.clone(),
            pd: self.objects.domain(spec.pd.as_ref())?,
            cq,
            srq: srq.transpose()?,
            xrcd,
            caps: caps.map(|cap| cap as u32),
        };
        let (qp, qpn) = self.target.create_qp(&new)?;
        let near = self.card.first_near + self.objects.qps.len() as u32;
        let name = self.objects.indexed(&spec.name);
        self.store_name(&name, "qpn", qpn.into());
        self.store_name(&name, "near", near.into());
        let card_qp = CardQp { name, qp, cq, qpn, near, qkey, service: spec.service.clone() };
        self.connect_qp(spec, &card_qp, first_numbers)?;
        self.objects.qps.push(card_qp);
        Ok(())
    }

    fn create_tag_srq(&mut self, name: &str, pd: Option<&String>, tags: &Number) -> Result<(), Stop> {
        let (pd, tags) = (self.objects.domain(pd)?, tags.value(&self.names)?);
        let (srq, cq) = self.target.create_tag_srq(pd, tags as u32)?;
        self.objects.srqs.insert(name.to_owned(), Srq { srq, cq: Some(cq) });
        Ok(())
    }

    fn create_srq(&mut self, name: &str, pd: Option<&String>, xrcd: Option<&String>) -> Result<(), Stop> {
        let pd = self.objects.domain(pd)?;
        let queue = match self.objects.xrc_domain(xrcd)? {
            None => Srq { srq: self.target.create_srq(pd)?, cq: None },
            Some(xrcd) => {
                let cq = self.target.create_cq(SRQ_CQ_ENTRIES)?;
                let (srq, number) = self.target.create_xrc_srq(pd, xrcd, cq)?;
                self.store_name(name, "srqn", number.into());
                Srq { srq, cq: Some(cq) }
            }
        };
        self.objects.srqs.insert(name.to_owned(), queue);
        Ok(())
    }

    /// Resets a queue pair and connects it again.
    fn restart(&mut self, spec: &QpSpec) -> Result<(), Stop> {
        let card_qp = self.objects.card_qp(Some(&spec.name))?.clone();
        let first_numbers = self.first_numbers(spec)?;
        self.target.modify_qp(card_qp.qp, &Change { to: "RESET".into(), ..Change::default() })?;
        self.connect_qp(spec, &card_qp, first_numbers)
    }

    /// Returns the path MTU, and the first PSN of each direction, of a queue pair.
    fn first_numbers(&self, spec: &QpSpec) -> Result<[u64; 3], Stop> {
        let number = |name, default| self.attribute(&spec.numbers, name, default);
        let mtu = number("mtu", u64::from(self.card.max_mtu.min(1024)))?;
        if mtu > u64::from(self.card.max_mtu) {
            return Err(Stop::Unsupported(format!("the port carries {} bytes, not {mtu}", self.card.max_mtu)));
        }
        Ok([mtu, number("rq_psn", 100)?, number("sq_psn", 500)?])
    }

    /// Moves a queue pair from RESET to the state in the script.
    fn connect_qp(&mut self, spec: &QpSpec, card_qp: &CardQp, first_numbers: [u64; 3]) -> Result<(), Stop> {
        for (part, value) in ["mtu", "psn", "first"].into_iter().zip(first_numbers) {
            self.store_name(&card_qp.name, part, value);
        }
        for change in self.transitions(spec, card_qp)? {
            self.target.modify_qp(card_qp.qp, &change)?;
        }
        Ok(())
    }

    /// Returns the transition to RTR, which connects a queue pair to the near side.
    fn to_rtr(&self, numbers: &Numbers, card_qp: &CardQp) -> Result<Change, Stop> {
        let byte = |name, default| self.attribute(numbers, name, default).map(|value| Some(value as u8));
        let mut rtr = Change { to: "RTR".into(), ..Change::default() };
        if !card_qp.is_datagram() {
            rtr.dest = Some((card_qp.near, self.card.near[0]));
            rtr.traffic_class = self.traffic_class(numbers)?;
            rtr.hop_limit = self.change(numbers)?.hop_limit;
            (rtr.path_mtu, rtr.rq_psn) =
                (Some(self.first_number(card_qp, "mtu")), Some(self.first_number(card_qp, "psn")));
        }
        if card_qp.is_reliable() {
            rtr.max_dest_rd_atomic = byte("dest_rd_atomic", 4)?;
            rtr.min_rnr_timer = byte("rnr_timer", 12)?;
        }
        Ok(rtr)
    }

    /// Returns the path MTU (`mtu`) or a first PSN (`psn`, `first`) of a queue pair.
    fn first_number(&self, card_qp: &CardQp, part: &str) -> u32 {
        self.names.get(&format!("{}.{part}", card_qp.name)).map_or(0, |value| *value as u32 & 0xff_ffff)
    }

    fn traffic_class(&self, numbers: &Numbers) -> Result<u8, Stop> {
        self.attribute(numbers, "dscp", 0).map(|dscp| (dscp as u8) << 2)
    }

    /// Returns the transitions from RESET to the state in the script.
    fn transitions(&self, spec: &QpSpec, card_qp: &CardQp) -> Result<Vec<Change>, Stop> {
        let byte = |name, default| self.attribute(&spec.numbers, name, default).map(|value| Some(value as u8));
        let is_ud = card_qp.is_datagram();
        let to = |state: &str| Change { to: state.into(), ..Change::default() };
        let init =
            Change { access: (!is_ud).then_some(spec.access), qkey: is_ud.then_some(card_qp.qkey), ..to("INIT") };
        let rtr = self.to_rtr(&spec.numbers, card_qp)?;
        let mut rts = Change { sq_psn: Some(self.first_number(card_qp, "first")), ..to("RTS") };
        if card_qp.is_reliable() {
            rts.timeout = byte("timeout", ACK_TIMEOUT)?;
            rts.retry_cnt = byte("retry_cnt", 7)?;
            rts.rnr_retry = byte("rnr_retry", 7)?;
            rts.max_rd_atomic = byte("rd_atomic", 4)?;
        }
        let steps = match spec.state.as_str() {
            "RESET" => 0,
            "INIT" => 1,
            "RTR" => 2,
            _ => 3,
        };
        Ok([init, rtr, rts].into_iter().take(steps).collect())
    }

    fn post(&mut self, post: &Post) -> Result<(), Stop> {
        let card_qp = self.objects.card_qp(Some(&post.qp))?.clone();
        let number = |name, default| self.attribute(&post.numbers, name, default);
        let mut flags: Vec<_> = post.flags.iter().copied().filter(|flag| *flag != "UNSIGNALED").collect();
        if flags.len() == post.flags.len() {
            flags.push("SIGNALED");
        }
        let dest = (self.card.near[0], number("remote_qpn", card_qp.near.into())? as u32);
        let qkey = number("remote_qkey", card_qp.qkey.into())? as u32;
        let work = Work {
            wr_id: post.id.value(&self.names)?,
            opcode: post.operation.clone(),
            flags,
            pieces: self.pieces(&post.sges)?,
            inline: post.inline.as_ref().map(|data| data.bytes(&self.names)).transpose()?,
            remote_addr: number("remote", 0)?,
            rkey: number("rkey", number("invalidate", 0)?)? as u32,
            imm: number("imm", 0)? as u32,
            compare_add: number("compare", number("add", 0)?)?,
            swap: number("swap", 0)?,
            srqn: number("srqn", 0)? as u32,
            datagram: card_qp.is_datagram().then_some((dest.0, dest.1, qkey)),
            traffic_class: self.traffic_class(&post.numbers)?,
            hop_limit: number("hop_limit", 64)? as u8,
        };
        check_refusal(self.target.post_send(card_qp.qp, &work), post.refused)
    }

    fn post_tag(&mut self, tag: &Tag) -> Result<(), Stop> {
        let Tag { srq, operation, name, id, sges, numbers } = tag;
        let (number, posted) = (|name, default| self.attribute(numbers, name, default), &self.objects.tags);
        let removed =
            name.as_ref().filter(|_| *operation == "DEL").map(|name| known(posted, "tag", name)).transpose()?;
        let work = TagWork {
            operation,
            wr_id: id.value(&self.names)?,
            recv_id: number("receive", 0)?,
            tag: number("tag", 0)?,
            mask: number("mask", u64::MAX)?,
            pieces: self.pieces(sges)?,
            handle: removed.unwrap_or(0),
            unexpected: self.optional(numbers.get("unexpected"))?.map(|count| count as u32),
        };
        let handle = self.target.post_tag(known(&self.objects.srqs, "SRQ", srq)?.srq, &work)?;
        if let (Some(name), "ADD") = (name, *operation) {
            self.objects.tags.insert(name.clone(), handle);
        }
        Ok(())
    }

    fn bind(&mut self, bind: &Bind) -> Result<(), Stop> {
        let window = known(&self.objects.windows, "window", &bind.window)?;
        let (qp, mr) = (self.objects.card_qp(Some(&bind.qp))?.qp, self.objects.region(&bind.mr)?.mr);
        let bound = Bound {
            at: bind.at.value(&self.names)?,
            length: bind.length.value(&self.names)?,
            access: bind.access,
            wr_id: bind.id.value(&self.names)?,
        };
        let rkey = self.target.bind_window(qp, window, mr, bound)?;
        self.store_name(&bind.window, "rkey", rkey.into());
        Ok(())
    }

    /// Returns the next completion of a queue pair.
    fn completion(&mut self, card_qp: &CardQp) -> Answer<Option<Completed>> {
        let mut new = self.target.poll(card_qp.cq)?;
        if card_qp.qpn == ANY_QPN {
            new.iter_mut().for_each(|done| done.qpn = ANY_QPN);
        }
        self.objects.completed.extend(new);
        let at = self.objects.completed.iter().position(|done| done.qpn == card_qp.qpn);
        Ok(at.map(|at| self.objects.completed.remove(at)))
    }

    /// Returns the queue pair with this name. For an SRQ with its own completion queue, returns a
    /// stand-in for all queue pairs that complete there.
    fn completing_qp(&self, name: &str) -> Result<CardQp, Stop> {
        match self.objects.srqs.get(name).and_then(|queue| queue.cq) {
            Some(cq) => {
                let nothing = || Stop::Script(format!("`{name}` has no completion queue"));
                Ok(CardQp { cq, qpn: ANY_QPN, ..self.objects.qps.first().ok_or_else(nothing)?.clone() })
            }
            None => self.objects.card_qp(Some(name)).cloned(),
        }
    }

    fn complete(&mut self, qp: &str, wanted: &ExpectedCompletion, within: &Number) -> Result<(), Stop> {
        let card_qp = self.completing_qp(qp)?;
        let id = wanted.id.value(&self.names)?;
        let expected = format!("completion of {qp}: id={id} status={}", wanted.status);
        let Some(done) = self.wait(within, |run| run.completion(&card_qp))? else {
            return Err(differs(expected, "nothing".into()));
        };
        let mut wrong = done.wr_id != id || done.status != wanted.status;
        wrong |= wanted.opcode.as_ref().is_some_and(|opcode| *opcode != done.opcode);
        let mut details = wanted.opcode.as_ref().map_or_else(String::new, |opcode| format!(" opcode={opcode}"));
        for (name, number) in &wanted.numbers {
            let value = number.value(&self.names)?;
            let is = match *name {
                "bytes" => Some(done.byte_len.into()),
                "imm" => done.imm.map(u64::from),
                "invalidated" => done.invalidated.map(u64::from),
                "tag" => done.tag.map(|(tag, _)| tag),
                "context" => done.tag.map(|(_, context)| context.into()),
                "grh" => Some(u64::from(done.flags & GRH != 0)),
                "matched" => Some(u64::from(done.flags & TM_MATCH != 0)),
                "valid" => Some(u64::from(done.flags & TM_DATA_VALID != 0)),
                "asks_sync" => Some(u64::from(done.flags & TM_SYNC_REQ != 0)),
                _ => Some(done.src_qp.into()),
            };
            wrong |= is != Some(value);
            details += &format!(" {name}={value}");
        }
        if wrong { Err(differs(expected + &details, done.to_string())) } else { Ok(()) }
    }

    fn connection(&mut self, name: &str, act: &CmStep) -> Result<(), Stop> {
        match act {
            CmStep::Listen { space, backlog } => {
                let backlog = self.optional(backlog.as_ref())?;
                let (id, port) = self.target.listen(space, backlog.map(|backlog| backlog as u32))?;
                let high = if space == "UDP" { UDP_SPACE } else { TCP_SPACE };
                self.store_name(name, "port", port.into());
                self.store_name(name, "service", high << 16 | u64::from(port));
                self.objects.ids.insert(name.to_owned(), id);
            }
            CmStep::Request { of, private, numbers, within } => {
                let listener = self.objects.id(of)?;
                let matches = |event: &ConnectionEvent| event.listener == Some(listener);
                let event = self.next_event(&format!("a request for {of}"), within, matches)?;
                self.check_details(&event, private.as_ref(), numbers)?;
                self.objects.ids.insert(name.to_owned(), event.id);
            }
            CmStep::Connect { qp, space, private, numbers } => {
                let conn_param = self.conn_param(numbers, private.as_ref())?;
                let port = self.attribute(numbers, "port", 18_515)? as u16;
                let near = self.card.near[0];
                if near.to_ip().is_loopback() {
                    // librdmacm resolves a loopback address to its own host.
                    let why = "the near side is on the loopback interface, where librdmacm reaches this host only";
                    return Err(Stop::Unsupported(why.into()));
                }
                let id = self.target.connect(space, port, self.objects.card_qp(Some(qp))?.qp, &conn_param)?;
                self.objects.ids.insert(name.to_owned(), id);
            }
            CmStep::Accept { qp, state, private, numbers } => {
                let conn_param = self.conn_param(numbers, private.as_ref())?;
                self.target.accept(self.objects.id(name)?, self.objects.card_qp(Some(qp))?.qp, state, &conn_param)?;
            }
            CmStep::Establish { qp } => {
                self.target.establish(self.objects.id(name)?, self.objects.card_qp(Some(qp))?.qp)?
            }
            CmStep::Reject { private } => {
                let private = private.as_ref().map_or(Ok(Vec::new()), |data| data.bytes(&self.names))?;
                self.target.reject(self.objects.id(name)?, &private)?;
            }
            CmStep::Disconnect => self.target.disconnect(self.objects.id(name)?)?,
            CmStep::Notify => self.target.notify(self.objects.id(name)?)?,
            CmStep::Forget => {
                self.target.destroy_id(self.objects.id(name)?)?;
                self.objects.ids.remove(name);
            }
            CmStep::Event(awaited) => self.expect_event(name, awaited)?,
            CmStep::Quiet { time } => {
                let id = self.objects.id(name)?;
                self.pass(time)?;
                let new = self.target.connection_events()?;
                self.objects.connection_events.extend(new);
                let matches = |event: &&ConnectionEvent| event.listener.unwrap_or(event.id) == id;
                if let Some(event) = self.objects.connection_events.iter().find(matches) {
                    return Err(differs(format!("no event of {name}"), event.name.clone()));
                }
            }
        }
        Ok(())
    }

    fn conn_param(&self, numbers: &Numbers, private: Option<&Data>) -> Result<ConnParam, Stop> {
        let number = |name, default| self.attribute(numbers, name, default).map(|value| value as u8);
        Ok(ConnParam {
            private_data: private.map_or(Ok(Vec::new()), |data| data.bytes(&self.names))?,
            depths: [number("responder_resources", 4)?, number("initiator_depth", 4)?],
            retry_cnt: number("retry_cnt", 7)?,
            rnr_retry: number("rnr_retry", 7)?,
        })
    }

    /// Returns the next event for which `matches` is true.
    fn next_event(
        &mut self,
        expected: &str,
        within: &Number,
        matches: impl Fn(&ConnectionEvent) -> bool,
    ) -> Result<ConnectionEvent, Stop> {
        let found = self.wait(within, |run| {
            let new = run.target.connection_events()?;
            run.objects.connection_events.extend(new);
            let at = run.objects.connection_events.iter().position(&matches);
            Ok(at.map(|at| run.objects.connection_events.remove(at)))
        })?;
        let names: Vec<_> = self.objects.connection_events.iter().map(|event| event.name.as_str()).collect();
        let others = if names.is_empty() { "nothing".into() } else { format!("other events: {}", names.join(", ")) };
        found.ok_or_else(|| differs(expected.into(), others))
    }

    fn expect_event(&mut self, name: &str, awaited: &ExpectedCmEvent) -> Result<(), Stop> {
        let ExpectedCmEvent { event, status, private, numbers, within } = awaited;
        let id = self.objects.id(name)?;
        let expected = format!("event {event} of {name}");
        let matches = |event: &ConnectionEvent| event.id == id && event.listener.is_none();
        let received = self.next_event(&expected, within, matches)?;
        if received.name != *event {
            return Err(differs(expected, format!("{} with status {}", received.name, received.status)));
        }
        if let Some(status) = status {
            let wanted = status.value(&self.names)?.cast_signed();
            if received.status != wanted {
                return Err(differs(format!("{expected} with status {wanted}"), format!("status {}", received.status)));
            }
        }
        self.check_details(&received, private.as_ref(), numbers)
    }

    /// Fails if an event has other numbers or private data. librdmacm pads private data with zeros.
    fn check_details(&self, event: &ConnectionEvent, private: Option<&Data>, numbers: &Numbers) -> Result<(), Stop> {
        self.compare(&format!("{} with", event.name), numbers, &event.numbers)?;
        let Some(data) = private else { return Ok(()) };
        let mut wanted = data.bytes(&self.names)?;
        wanted.resize(wanted.len().max(event.private_data.len()), 0);
        let differ = bytes_differ("private data", &wanted, &event.private_data);
        differ.map_or(Ok(()), |differ| Err(differs(format!("{} with private data", event.name), differ)))
    }
}

/// Fails if the verb succeeded and must be `refused`, or failed and must not.
fn check_refusal(answer: Answer<()>, refused: bool) -> Result<(), Stop> {
    match (answer, refused) {
        (Ok(()), true) => Err(differs("the verb fails".into(), "the verb succeeds".into())),
        (Err(refusal), true) if refusal.errno != 0 => Ok(()),
        (answer, _) => Ok(answer?),
    }
}
