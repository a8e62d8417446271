//! The only clock of the engine: nanoseconds since this process first asked. Monotonic; read once per batch.

use roxe_transport::time::Instant;
use std::sync::OnceLock;

/// The time now, on the clock of completion timestamps; never zero.
pub fn now() -> Instant {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    Instant(1).after(START.get_or_init(std::time::Instant::now).elapsed())
}
