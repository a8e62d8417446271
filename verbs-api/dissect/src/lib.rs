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
pub mod ladder;
mod page;
mod reader;
mod requests;
mod words;

pub use analysis::{Analysis, Finding, Flow, FlowKey, Message, Outcome};
pub use event::{Cause, Event, Tone};
pub use fields::{Section, sections};
pub use page::{Counts, page};
pub use reader::{Captured, Integrity, Item, Other, Others, items};
pub use words::words;

#[cfg(test)]
mod tests;
