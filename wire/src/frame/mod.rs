//! Ethernet frames as flow steering sees them: where their headers lie, what these say
//! ([`FrameKey`]), whether that is what somebody asks for ([`FrameMatch`]), and the checksums in
//! them ([`checksum`]).
//!
//! Any bytes may come in. Headers that are not whole, or not understood, count as payload. Touches
//! nothing.

pub mod checksum;
mod key;
mod layout;

pub use key::{Contradiction, Field, FrameKey, FrameMatch};
pub use layout::{ETH_LEN, TAG_LEN};
