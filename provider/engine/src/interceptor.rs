//! What watches and spoils packets on demand: captures (`ROXE_CAPTURE`), the packets of a trace
//! (`ROXE_TRACE`) and faults (`ROXE_FAULTS`, and those of the weakest legal card).
//!
//! An engine has a [`Interceptor`] if the environment asks for one; without it a batch of packets
//! pays one test. What is sent passes through `tx/intercepted.rs`, what arrives through
//! `rx/intercepted.rs`; both let the interceptor judge and record, and carry out what it says.

mod faults;
mod held;
mod packet_comment;
pub mod process;
mod recorder;
mod recording;

pub(crate) use held::{Held, Incoming, MAX_HELD};
pub(crate) use packet_comment::{Fate, Origin, PacketComment};
pub(crate) use recording::Recording;

use faults::Faults;
use recorder::Recorder;
use roxe_base::config::Config;
use roxe_base::error::Error;
use roxe_base::lock::rank;
use roxe_base::timers::Timers;
use roxe_base::weakest::{self, Weakness};
use roxe_check::trace;
use roxe_observe::counters::Counters;
use roxe_transport::fault::{Seen, Verdict};
use roxe_wire::{NetHeader, Packet, icrc};

/// The interceptor of one engine.
#[derive(Debug)]
pub struct Interceptor {
    /// With the number of the device's interface in the capture.
    recorder: Option<(&'static Recorder, u32)>,
    faults: Option<&'static Faults>,
    /// Packets that rules hold back.
    pub(crate) delayed: Timers<rank::Delayed, Held>,
}

impl Interceptor {
    /// Whether rules may lose or reorder packets.
    pub(crate) fn spoils(&self) -> bool {
        self.faults.is_some()
    }

    /// What `config` asks for on the device `name`; `None`: nothing. Fails if the capture cannot be
    /// written.
    pub(crate) fn open(config: &Config, name: &str) -> Result<Option<Self>, Error> {
        let loses = config.faults.is_some() || weakest::has(Weakness::LOSS);
        if config.capture.is_none() && !loses && !trace::is_on() {
            return Ok(None);
        }
        let (recorder, faults) = process::open(config)?;
        let recorder = recorder.map(|recorder| (recorder, recorder.interface(name)));
        Ok(Some(Self { recorder, faults, delayed: Timers::default() }))
    }

    /// What shall happen to these packets, which pass now, one verdict each; `None` stands for what
    /// is no packet, and passes.
    pub(crate) fn judge<'a>(&self, packets: impl Iterator<Item = Option<Seen<'a>>>) -> Vec<Verdict> {
        let Some(faults) = self.faults else { return packets.map(|_| Verdict::PASS).collect() };
        let at = faults.age();
        let mut injector = faults.injector();
        packets.map(|seen| seen.map_or(Verdict::PASS, |seen| injector.judge(&Seen { at, ..seen }))).collect()
    }

    /// Begins to record a batch of packets; `None`: they are not recorded.
    pub(crate) fn record(&self) -> Option<Recording<'_>> {
        let capture = self.recorder.map(|(recorder, interface)| (recorder.record(), interface));
        let traced = trace::is_on().then(Vec::new);
        (capture.is_some() || traced.is_some()).then_some(Recording { capture, traced })
    }

    /// The queue pair `ordinal` is gone or starts anew.
    pub(crate) fn forget(&self, ordinal: u32) {
        self.faults.into_iter().for_each(|faults| faults.injector().forget(ordinal));
    }

    /// What a capture says of `verdict`; `None`: nothing happened.
    pub(crate) fn fate(&self, verdict: Verdict) -> Option<Fate<'_>> {
        self.faults?.fate(verdict)
    }
}

/// Counts what a verdict asks for.
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

/// The packet that a verdict lets travel ahead of this one, sealed.
pub(crate) fn forged(net: &NetHeader, packet: Option<&Packet<'_>>, verdict: &Verdict) -> Option<Vec<u8>> {
    let mut bytes = verdict.forged?.packet(packet?)?;
    icrc::seal(net, &mut bytes);
    Some(bytes)
}

/// The header of a packet with the mark that a verdict asks for.
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
    fn a_mark_is_set_and_the_rest_stays() {
        let net = NetHeader { traffic_class: 0x6a, ..NetHeader::default() };
        assert_eq!(marked(net, &Verdict::PASS), net);
        assert_eq!(marked(net, &Verdict { mark_ce: true, ..Verdict::PASS }).traffic_class, 0x6b);
    }
}
