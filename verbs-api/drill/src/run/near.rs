//! The steps of the near side, which sends packets to the card and expects packets from it.

use super::state::{CardQp, Run, Stop};
use crate::craft::{self, Values};
use crate::layout::BTH_LEN;
use crate::mad;
use crate::script::steps::{Count, Expectation, Spec};
use crate::target::Datagram;
use roxe_wire::{Gid, NetHeader};
use std::time::Duration;

/// Returns the destination queue pair number of a packet.
const fn destination(packet: &[u8]) -> u32 {
    u32::from_be_bytes([0, packet[5], packet[6], packet[7]])
}

impl Run<'_> {
    pub(super) fn send(&mut self, spec: &Spec) -> Result<(), Stop> {
        let default = self.default(spec)?;
        let [near, stranger] = self.card.near;
        if spec.overrides.stranger && stranger.is_zero() {
            return Err(Stop::Unsupported("the near side has one address".into()));
        }
        let net = NetHeader {
            src: if spec.overrides.stranger { stranger } else { near },
            dst: spec.overrides.group.map_or(self.card.address, Gid::from),
            src_port: self.card.near_port,
            traffic_class: spec.overrides.tos.value(&self.names)? as u8,
            hop_limit: spec.overrides.ttl.value(&self.names)? as u8,
            ..NetHeader::default()
        };
        let bytes = craft::build(spec, &default, &net, &self.names)?;
        let datagram = Datagram { net, bytes };
        // A packet is due at once, or after the script's `wait`s since the last packet. The first
        // packet is never late, because the far side may take long to create objects.
        if !self.log.packets().is_empty() {
            self.record_delay(self.last + self.waited);
        }
        (self.last, self.waited) = (self.target.now(), Duration::ZERO);
        self.log.add(self.last, false, datagram.clone());
        self.store_names(spec, &datagram.bytes);
        self.target.send(&datagram)?;
        Ok(())
    }

    /// Returns the values of fields that the step does not set.
    fn default(&self, spec: &Spec) -> Result<Values, Stop> {
        if let Some(message) = spec.message {
            let card_qp = self.objects.card_qp(spec.qp.as_deref()).ok();
            return Ok(self.default_message(message, card_qp));
        }
        let card_qp = self.objects.card_qp(spec.qp.as_deref())?;
        let dqpn = if spec.overrides.group.is_some() { 0xff_ffff } else { card_qp.qpn };
        Ok(vec![("dqpn", dqpn.into()), ("sqpn", card_qp.near.into()), ("qkey", card_qp.qkey.into())])
    }

    /// Returns the default fields of a message of the connection manager. They request an RC
    /// connection with a queue pair.
    fn default_message(&self, message: &mad::Message, card_qp: Option<&CardQp>) -> Values {
        let halves = |gid: Gid| {
            let bits = u128::from_be_bytes(gid.0);
            [(bits >> 64) as u64, bits as u64]
        };
        let id = u64::from(self.card.first_near);
        let ([near_high, near_low], [card_high, card_low]) = (halves(self.card.near[0]), halves(self.card.address));
        let is_ipv4 = self.card.address.is_ipv4();
        // RDMA CM's header has IPv4 addresses without the prefix of their GID.
        let address = |[high, low]: [u64; 2]| if is_ipv4 { [0, low & 0xffff_ffff] } else { [high, low] };
        let [src_high, src_low] = address([near_high, near_low]);
        let [dst_high, dst_low] = address([card_high, card_low]);
        let qpn = if message.name == "SIDR_REP" { 0 } else { card_qp.map_or(id, |card_qp| card_qp.near.into()) };
        vec![
            ("dqpn", mad::GSI.into()),
            ("sqpn", mad::GSI.into()),
            ("qkey", mad::GSI_QKEY.into()),
            ("base_version", 1),
            ("class", 7),
            ("class_version", 2),
            ("method", 3),
            ("attribute", message.attribute.into()),
            ("tid", id),
            ("local_id", id),
            ("request_id", id),
            ("guid", self.card.guid),
            ("qpn", qpn),
            ("remote_qpn", card_qp.map_or(0, |card_qp| card_qp.qpn.into())),
            ("responder_resources", 4),
            ("initiator_depth", 4),
            ("remote_timeout", 20),
            ("local_timeout", 20),
            ("retries", 7),
            ("partition", 0xffff),
            ("mtu", 3),
            ("rnr_retries", 7),
            ("cm_retries", 15),
            ("local_lid", 0xffff),
            ("remote_lid", 0xffff),
            ("local_gid_high", near_high),
            ("local_gid_low", near_low),
            ("remote_gid_high", card_high),
            ("remote_gid_low", card_low),
            ("hop_limit", 64),
            ("ack_timeout", 18),
            ("ip_version", if is_ipv4 { 4 } else { 6 }),
            ("ip_port", 50_000),
            ("ip_src_high", src_high),
            ("ip_src_low", src_low),
            ("ip_dst_high", dst_high),
            ("ip_dst_low", dst_low),
            ("service_timeout", 20),
        ]
    }

    pub(super) fn expect(&mut self, wanted: &Expectation) -> Result<(), Stop> {
        let deadline = self.target.now() + self.time(&wanted.within)?;
        let near = match wanted.spec.message {
            Some(_) => mad::GSI,
            None => self.objects.card_qp(wanted.spec.qp.as_deref())?.near,
        };
        let since = wanted.since.as_ref().map(|name| self.time_of(name)).transpose()?;
        let mut received = "nothing";
        loop {
            let before = self.last;
            let Some(packet) = self.next(deadline)? else {
                return Err(self.differs(&wanted.spec, received.into()));
            };
            let mut differences = self.mismatch(&wanted.spec, &packet, near)?;
            differences.extend(self.path_mismatch(wanted)?);
            if differences.is_empty() {
                let min = wanted.after.as_ref().map_or(Ok(Duration::ZERO), |after| self.time(after))?;
                let waited = self.last.saturating_sub(since.unwrap_or(before));
                if waited + self.card.jitter >= min {
                    self.store_names(&wanted.spec, &packet);
                    return Ok(());
                }
                let name = wanted.since.as_deref().unwrap_or("the packet before it");
                differences.push(format!("received {waited:?} after {name}"));
            } else if craft::is_skipped(&wanted.spec, wanted.skips, destination(&packet) == near, &packet, &self.names)?
            {
                received = "only packets that this step ignores";
                continue;
            }
            let received = format!("{} ({})", craft::describe(&packet), differences.join("; "));
            self.log.remark(&differences.join("; "));
            return Err(self.differs(&wanted.spec, received));
        }
    }

    /// Counts matching packets of the card until the time has passed. Fails if another packet,
    /// except a CNP, arrives in between.
    pub(super) fn count(&mut self, wanted: &Count) -> Result<(), Stop> {
        let until = self.target.now() + self.time(&wanted.time)?;
        let near = self.objects.card_qp(wanted.spec.qp.as_deref())?.near;
        let (mut count, mut first) = (0, None);
        while let Some(packet) = self.next(until)? {
            let differences = self.mismatch(&wanted.spec, &packet, near)?;
            if differences.is_empty() {
                count += 1;
                first.get_or_insert(self.last);
                self.store_names(&wanted.spec, &packet);
            } else if packet.first() != Some(&0x81) {
                self.log.remark(&differences.join("; "));
                let received = format!("{} ({})", craft::describe(&packet), differences.join("; "));
                return Err(self.differs(&wanted.spec, received));
            }
        }
        if let Some(name) = &wanted.spec.prefix {
            self.names.insert(format!("{name}.count"), count);
            first.map(|first| self.names.insert(format!("{name}.first"), first.as_nanos() as u64));
        }
        let Some([min, max]) = &wanted.range else { return Ok(()) };
        let (min, max) = (min.value(&self.names)?, max.value(&self.names)?);
        if (min..=max).contains(&count) {
            return Ok(());
        }
        let expected = format!("{min} to {max} packets {}", wanted.spec.name);
        Err(Stop::Differs { expected, received: format!("{count} of them in {}", wanted.time) })
    }

    /// Returns the differences between the newest packet and the expected one, which goes to the
    /// queue pair `near`.
    fn mismatch(&self, spec: &Spec, packet: &[u8], near: u32) -> Result<Vec<String>, Stop> {
        let mut differences = craft::differences(spec, packet, &self.names)?;
        let to = destination(packet);
        if to != near {
            differences.push(format!("its destination is queue pair {to:#x}, not {near:#x}"));
        }
        if self.objects.has_alternate && self.is_to_stranger != spec.overrides.stranger {
            differences.push("it was sent over the other path".into());
        }
        Ok(differences)
    }

    /// Returns the differences in DSCP, TTL and hop limit between the newest packet and the
    /// expected one. The ECN bits are the card's choice.
    fn path_mismatch(&self, wanted: &Expectation) -> Result<Vec<String>, Stop> {
        let (tos, ttl) = self.newest_path();
        let mut differences = Vec::new();
        for (name, is, wanted) in [("DSCP", tos >> 2, &wanted.dscp), ("TTL", ttl, &wanted.ttl)] {
            if let Some(wanted) = self.optional(wanted.as_ref())?.filter(|wanted| *wanted != u64::from(is)) {
                differences.push(format!("its {name} is {is}, not {wanted}"));
            }
        }
        Ok(differences)
    }

    /// Returns TOS or traffic class, and TTL or hop limit, of the newest packet.
    fn newest_path(&self) -> (u8, u8) {
        let net = self.log.packets().last().map(|packet| packet.datagram.net);
        net.map_or((0, 0), |net| (net.traffic_class, net.hop_limit))
    }

    /// Stores time, TOS and fields of the newest packet under the name that the step gives it.
    fn store_names(&mut self, spec: &Spec, packet: &[u8]) {
        let Some(name) = &spec.prefix else { return };
        self.names.insert(format!("{name}.at"), self.last.as_nanos() as u64);
        self.names.insert(format!("{name}.tos"), self.newest_path().0.into());
        for field in spec.layout().0.iter().filter(|field| !field.name.starts_with('_')) {
            self.names.insert(format!("{name}.{}", field.name), field.get(packet).unwrap_or_default());
        }
    }

    /// Returns the time of the packet of this name.
    fn time_of(&self, name: &str) -> Result<Duration, Stop> {
        let at = self.names.get(&format!("{name}.at"));
        at.map(|at| Duration::from_nanos(*at)).ok_or_else(|| Stop::Script(format!("there is no packet `{name}`")))
    }

    /// Returns the next packet of the card. Fails if it is malformed.
    fn next(&mut self, deadline: Duration) -> Result<Option<Vec<u8>>, Stop> {
        let start = self.target.now();
        let Some((at, datagram)) = self.target.receive(deadline)? else {
            self.waited += deadline.saturating_sub(start);
            self.record_delay(deadline.max(start));
            return Ok(None);
        };
        self.record_delay(at.max(start));
        (self.last, self.waited) = (at, Duration::ZERO);
        let bytes = datagram.bytes.clone();
        let flaw = craft::flaw(&datagram.net, &bytes, &self.objects.near());
        self.is_to_stranger = datagram.net.dst == self.card.near[1];
        let is_for_us = datagram.net.dst == self.card.near[0] || (self.objects.has_alternate && self.is_to_stranger);
        let is_misaddressed = datagram.net.src != self.card.address || !is_for_us;
        self.log.add(at, true, datagram);
        let flaw = flaw
            .or_else(|| is_misaddressed.then(|| "its addresses are not those of the connection".into()))
            .or_else(|| (bytes.len() < BTH_LEN).then(|| "it is shorter than a header".into()));
        let Some(flaw) = flaw else { return Ok(Some(bytes)) };
        self.log.remark(&flaw);
        let received = format!("{} ({flaw})", craft::describe(&bytes));
        Err(Stop::Differs { expected: "well-formed packets".into(), received })
    }

    /// Fails if a packet arrives before `until`. Ignores CNPs unless `forbids_cnps`.
    pub(super) fn expect_silence(&mut self, until: Duration, forbids_cnps: bool, expected: &str) -> Result<(), Stop> {
        while let Some(packet) = self.next(until)? {
            if forbids_cnps || packet.first() != Some(&0x81) {
                self.log.remark("no packet is expected");
                return Err(Stop::Differs { expected: expected.into(), received: craft::describe(&packet) });
            }
        }
        Ok(())
    }

    /// Returns a failure that shows the expected fields with the values of the script's names.
    fn differs(&self, spec: &Spec, received: String) -> Stop {
        let mut expected = spec.name.clone();
        for (name, number) in spec.fields.iter().filter(|(name, _)| name != "syndrome" || spec.name == "ACK") {
            let value = number.value(&self.names).unwrap_or_default();
            expected += &match name.as_str() {
                "psn" | "msn" => format!(" {name}={}", value & 0xff_ffff),
                _ => format!(" {name}={value:#x}"),
            };
        }
        Stop::Differs { expected, received }
    }
}
