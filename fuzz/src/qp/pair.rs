//! Fuzz target: two queue pairs and the network between them.

use roxe_sim::pair::random_pair;
use roxe_sim::scenario::{Work, run};
use roxe_sim::{Choices, Script};
use roxe_transport::qp::Service;

/// The input decides which requests two queue pairs post, and which faults the network injects.
///
/// Properties: those of [`roxe_sim::scenario`] with mishaps: no panic; every work request completes
/// at most once and in order; a successful one has the right bytes; the remaining ones are flushed.
///
/// # Panics
/// If a property does not hold.
pub fn qp_pair(data: &[u8]) {
    let mut script = Script::new(data);
    let service = script.pick(&[Service::Rc, Service::Uc, Service::Ud, Service::XrcIni]);
    // Enough messages that any two operations may overlap.
    let work = Work { messages: script.between(1, 12), max_len: script.between(1, 1200), mishaps: true };
    let mut pair = random_pair(service, 100, false, script);
    // Derived from an earlier choice, so that older inputs keep their meaning.
    pair.ends.iter_mut().for_each(|end| end.setup.early_wait = work.messages % 2 == 1);
    run(pair, work);
}
