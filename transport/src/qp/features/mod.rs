//! Features in addition to plain RC, UC and UD; a reader of the core can skip them. `xrc` and `raw`
//! attach where a packet or frame is handled and the next is sent, `migration` where a packet
//! arrives and retries are exhausted, `tags` in the receive queue, `congestion` where a marked
//! packet arrives and the next is sent.

pub(crate) mod congestion;
mod migration;
pub(crate) mod raw;
pub mod tags;
mod xrc;
