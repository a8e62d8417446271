//! Explains captures, for `roxe dump` and for reports.
//!
//! [`items`] finds the packets of a file, an [`Analysis`] returns the verdict on each in its
//! context, [`words`](words()) and [`sections`] describe it, [`page`](page()) draws it as a page of
//! HTML. [`judge`] says which cards break which rules.
//! A capture is hostile input: no bytes cause a panic, and none of them become markup.
#![forbid(unsafe_code)]

mod analysis;
mod event;
mod fields;
pub mod judge;
mod page;
mod reader;
mod requests;
mod sequence;
mod words;

pub use analysis::{Analysis, Finding, Flow, FlowKey, Message, Outcome};
pub use event::{Cause, Event, Tone};
pub use fields::{Section, sections};
pub use page::{Counts, Page, Shapes, escape, page, render};
pub use reader::{Captured, Integrity, Item, Other, Others, items};
pub use words::words;

#[cfg(test)]
mod tests;
