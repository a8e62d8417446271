//! The steps of the near side: packets to the card, and packets from it.

use super::state::{Run, Stop};
use crate::craft::{self, Usual};
use crate::layout::BTH_LEN;
use crate::script::steps::{Expectation, Spec};
use crate::target::Datagram;
use roxe_wire::NetHeader;
use std::time::Duration;

impl Run<'_> {
    pub(super) fn send(&mut self, spec: &Spec) -> Result<(), Stop> {
        let tie = self.world.tie(spec.qp.as_deref())?;
        let [near, stranger] = self.card.near;
        if spec.damage.stranger && stranger.is_zero() {
            return Err(Stop::Unsupported("the near side has one address".into()));
        }
        let tos = spec.damage.tos.as_ref().map_or(Ok(0), |tos| tos.value(&self.names))?;
        let net = NetHeader {
            src: if spec.damage.stranger { stranger } else { near },
            dst: self.card.address,
            src_port: self.card.near_port,
            traffic_class: tos as u8,
            hop_limit: 64,
            ..NetHeader::default()
        };
        let usual = Usual { dqpn: tie.qpn, sqpn: tie.near, qkey: tie.qkey };
        let bytes = craft::build(spec, usual, &net, &self.names)?;
        let datagram = Datagram { net, bytes };
        self.last = self.target.now();
        self.log.add(self.last, false, datagram.clone());
        self.target.send(&datagram)?;
        Ok(())
    }

    pub(super) fn expect(&mut self, wanted: &Expectation) -> Result<(), Stop> {
        let deadline = self.deadline(wanted.within.as_ref())?;
        let near = self.world.tie(wanted.spec.qp.as_deref())?.near;
        loop {
            let before = self.last;
            let Some(packet) = self.next(deadline)? else {
                return Err(self.differs(&wanted.spec, "nothing".into()));
            };
            let mut differences = craft::differences(&wanted.spec, &packet, &self.names)?;
            let to = u32::from_be_bytes([0, packet[5], packet[6], packet[7]]);
            if to != near {
                differences.push(format!("it goes to queue pair {to:#x}, not {near:#x}"));
            }
            if differences.is_empty() {
                let least = wanted.after.as_ref().map_or(Ok(Duration::ZERO), |after| self.time(after))?;
                let waited = self.last.saturating_sub(before);
                if waited + self.card.jitter >= least {
                    return Ok(());
                }
                differences.push(format!("it came {waited:?} after the packet before it"));
            } else if craft::is_skipped(&wanted.spec, wanted.skips, &packet, &self.names)? {
                continue;
            }
            let received = format!("{} ({})", craft::describe(&packet), differences.join("; "));
            self.log.remark(&differences.join("; "));
            return Err(self.differs(&wanted.spec, received));
        }
    }

    /// The next packet of the card; it is well formed.
    fn next(&mut self, deadline: Duration) -> Result<Option<Vec<u8>>, Stop> {
        let Some((at, datagram)) = self.target.receive(deadline)? else { return Ok(None) };
        self.last = at;
        let bytes = datagram.bytes.clone();
        let flaw = craft::flaw(&datagram.net, &bytes, &self.world.near());
        let from_whom = (datagram.net.src, datagram.net.dst) != (self.card.address, self.card.near[0]);
        self.log.add(at, true, datagram);
        let flaw = flaw.or_else(|| from_whom.then(|| "its addresses are not those of the connection".into()));
        match flaw {
            None if bytes.len() >= BTH_LEN => Ok(Some(bytes)),
            flaw => {
                let flaw = flaw.unwrap_or_else(|| "it is shorter than a header".into());
                self.log.remark(&flaw);
                let received = format!("{} ({flaw})", craft::describe(&bytes));
                Err(Stop::Differs { expected: "packets that are well formed".into(), received })
            }
        }
    }

    /// No packet comes until then.
    pub(super) fn quiet(&mut self, until: Duration, expected: &str) -> Result<(), Stop> {
        while let Some(packet) = self.next(until)? {
            if packet.first() != Some(&0x81) {
                self.log.remark("nothing should come");
                return Err(Stop::Differs { expected: expected.into(), received: craft::describe(&packet) });
            }
        }
        Ok(())
    }

    /// The numbers of the script in the place of its names.
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
