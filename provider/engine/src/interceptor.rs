//! Captures (`ROXE_CAPTURE`), packets of traces (`ROXE_TRACE`), and faults (`ROXE_FAULTS`, and
//! losses of the weakest legal card).
//!
//! An engine has an [`Interceptor`] only if one of these is configured; otherwise a batch costs one
//! test. Sent packets pass through `tx/intercepted.rs`, received ones through `rx/intercepted.rs`.

mod faults;
mod packet_comment;
pub mod process;
mod recorder;
mod recording;

pub(crate) use packet_comment::{Fate, Origin, PacketComment};
pub(crate) use recording::Recording;

use faults::Faults;
use recorder::Recorder;
use roxe_base::config::Config;
use roxe_base::error::Error;
use roxe_base::lock::rank;
use roxe_base::timers::Timers;
use roxe_check::faults as own_faults;
use roxe_check::trace;
use roxe_net::link::RxMeta;
use roxe_observe::counters::Counters;
use roxe_transport::fault::{PacketContext, Verdict};
use roxe_wire::{NetHeader, Packet, Qpn, icrc};

/// Maximum number of delayed packets at a time; further ones are lost.
pub(crate) const MAX_HELD: usize = 1 << 14;

/// A packet delayed by a fault rule.
#[derive(Debug)]
pub(crate) enum Held {
    Outgoing { net: NetHeader, bytes: Vec<u8>, packet_comment: PacketComment },
    Incoming(Incoming),
}

/// A delayed packet for a queue pair of this process.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    pub qpn: Qpn,
    /// Receive metadata of this packet alone.
    pub meta: RxMeta,
    /// Bytes from BTH to ICRC.
    pub bytes: Vec<u8>,
    /// True if it shall find no posted receive.
    pub rnr: bool,
    /// True for a duplicate made by a rule.
    pub is_copy: bool,
}

/// Captures and fault rules of one engine.
#[derive(Debug)]
pub struct Interceptor {
    /// Recorder, and the index of the device's interface in the capture.
    recorder: Option<(&'static Recorder, u32)>,
    faults: Option<&'static Faults>,
    /// True if packets count for the census.
    is_counting: bool,
    pub(crate) delayed: Timers<rank::Delayed, Held>,
}

impl Interceptor {
    /// Returns true if rules may lose or reorder packets.
    pub(crate) fn injects_faults(&self) -> bool {
        self.faults.is_some()
    }

    /// Opens the interceptor that `config` demands for the device `name`. Errors if the capture
    /// cannot be written.
    pub(crate) fn open(config: &Config, name: &str) -> Result<Option<Self>, Error> {
        let (recorder, faults) = process::open(config)?;
        if recorder.is_none() && faults.is_none() && config.census.is_none() && !trace::is_on() {
            return Ok(None);
        }
        let recorder = recorder.map(|recorder| (recorder, recorder.interface(name)));
        Ok(Some(Self { recorder, faults, is_counting: config.census.is_some(), delayed: Timers::default() }))
    }

    /// Returns the fate of each packet; `None` (an unparsable packet) passes.
    pub(crate) fn judge<'a>(&self, packets: impl Iterator<Item = Option<PacketContext<'a>>>) -> Vec<Fate> {
        let counted = packets.inspect(|seen| {
            if let Some(PacketContext { dir, ordinal, packet, .. }) = seen.as_ref().filter(|_| self.is_counting) {
                own_faults::packet(*dir, *ordinal, packet);
            }
        });
        match self.faults {
            Some(faults) => faults.judge(counted),
            None => counted.map(|_| Fate::PASS).collect(),
        }
    }

    /// Begins to record a batch of packets; `None` if packets are not recorded.
    pub(crate) fn record(&self) -> Option<Recording<'_>> {
        let capture = self.recorder.map(|(recorder, interface)| (recorder.record(), interface));
        let traced = trace::is_on().then(Vec::new);
        (capture.is_some() || traced.is_some()).then_some(Recording { capture, traced })
    }

    /// Resets the counts of the queue pair `ordinal`, which is destroyed or reset.
    pub(crate) fn forget(&self, ordinal: u32) {
        if let Some(faults) = self.faults {
            faults.forget(ordinal);
        }
    }
}

pub(crate) fn count(counters: &Counters, verdict: &Verdict) {
    let Verdict { drop, copies, delay, corrupt, mark_ce, rnr, forged, .. } = *verdict;
    for (counter, times) in [
        (&counters.fault_dropped, u64::from(drop)),
        (&counters.fault_duplicated, u64::from(copies)),
        (&counters.fault_delayed, u64::from(!delay.is_zero())),
        (&counters.fault_corrupted, u64::from(corrupt.is_some())),
        (&counters.fault_marked, u64::from(mark_ce)),
        (&counters.fault_rnr, u64::from(rnr)),
        (&counters.fault_forged, u64::from(forged.is_some())),
    ] {
        if times > 0 {
            counter.add(times);
        }
    }
}

/// Returns the sealed packet that a verdict injects ahead of `packet`.
pub(crate) fn forged(net: &NetHeader, packet: Option<&Packet<'_>>, verdict: &Verdict) -> Option<Vec<u8>> {
    let mut bytes = verdict.forged?.packet(packet?)?;
    icrc::seal(net, &mut bytes);
    Some(bytes)
}

/// Returns the header with the congestion mark that a verdict demands.
pub(crate) fn marked(mut net: NetHeader, verdict: &Verdict) -> NetHeader {
    if verdict.mark_ce {
        net.mark();
    }
    net
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ce_mark_is_set_and_rest_unchanged() {
        let net = NetHeader { traffic_class: 0x6a, ..NetHeader::default() };
        assert_eq!(marked(net, &Verdict::PASS), net);
        assert_eq!(marked(net, &Verdict { mark_ce: true, ..Verdict::PASS }).traffic_class, 0x6b);
    }
}
