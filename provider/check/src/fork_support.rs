//! Whether the program has prepared for forks with outstanding requests. Reads the environment.

use roxe_base::config::variable;
use std::sync::atomic::{AtomicBool, Ordering};

static FORK_SUPPORT: AtomicBool = AtomicBool::new(false);

/// It has, or it has asked whether it has to.
pub fn note_fork_support() {
    FORK_SUPPORT.store(true, Ordering::Relaxed);
}

/// Whether it has, in a call or in its environment (`man ibv_fork_init`).
pub(crate) fn has_fork_support() -> bool {
    let asked = ["RDMAV_FORK_SAFE", "IBV_FORK_SAFE"].iter().any(|name| variable(name).is_some());
    FORK_SUPPORT.load(Ordering::Relaxed) || asked
}
