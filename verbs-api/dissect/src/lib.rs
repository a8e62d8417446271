//! Captures told in words: [`items`] finds the packets of a file, an [`Analysis`] says of each what
//! it means where it stands, [`words`](words()) and [`sections`] tell it, [`ladder`] draws it.
//!
//! For `roxe dump` and for reports. A capture is hostile input: any bytes are read without panic,
//! and nothing of them becomes markup. Works on bytes in memory; touches no file, no network and no
//! clock.
#![forbid(unsafe_code)]

mod analysis;
mod event;
mod fields;
mod flow;
pub mod ladder;
mod other;
mod page;
mod pairing;
mod reader;
mod requests;
mod words;

pub use analysis::{Analysis, Finding, Message, Outcome};
pub use event::{Cause, Event, Tone};
pub use fields::{Section, sections};
pub use flow::{Flow, FlowKey};
pub use other::{Other, Others};
pub use page::{Counts, page};
pub use reader::{Captured, Integrity, Item, items};
pub use words::words;

#[cfg(test)]
mod tests;
