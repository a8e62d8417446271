//! What queue pairs can do beside RC, UC and UD; a reader of the core can skip these files.
//!
//! Each is attached at few places: `xrc` and `raw` where a packet or frame is handed in and the
//! next one is sent, `migration` where a packet comes in and retries run out, `tags` in the receive
//! queue, `congestion` where a marked packet comes in and the next one is sent.

pub(crate) mod congestion;
mod migration;
pub(crate) mod raw;
pub mod tags;
mod xrc;
