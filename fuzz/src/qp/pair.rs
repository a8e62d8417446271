//! Two queue pairs and the network between them.

use roxe_sim::pair::random_pair;
use roxe_sim::scenario::{Work, run};
use roxe_sim::{Choices, Script};
use roxe_transport::qp::Service;

/// The input decides what two queue pairs post and what the network does to their packets.
///
/// Properties: those of [`roxe_sim::scenario`] with mishaps allowed: no panic, every
/// work request completes at most once and in order, what succeeds has the right bytes, what is
/// left is flushed.
///
/// # Panics
/// If a property does not hold.
pub fn qp_pair(data: &[u8]) {
    let mut script = Script::new(data);
    let service = script.pick(&[Service::Rc, Service::Uc, Service::Ud, Service::XrcIni]);
    // Enough for any two operations to overlap; more only makes an input slower.
    let work = Work { messages: script.between(1, 12), max_len: script.between(1, 1200), mishaps: true };
    let mut pair = random_pair(service, 100, false, script);
    // Decided by what was drawn already, so that older inputs mean what they meant.
    pair.ends.iter_mut().for_each(|end| end.setup.early_wait = work.messages % 2 == 1);
    run(pair, work);
}
