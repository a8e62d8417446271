//! Explains captures, for `roxe dump` and for reports.
//!
//! [`items`] finds the packets of a file. An [`Analysis`] returns the verdict on each packet in its
//! context. [`describe`](describe()) and [`sections`] describe a packet, and [`page`](page()) draws
//! a page of HTML. [`judge`] reports which cards break which rules.
//!
//! A capture is hostile input: no bytes cause a panic, and no bytes become markup.
#![forbid(unsafe_code)]

mod analysis;
mod describe;
mod event;
mod fields;
pub mod judge;
mod page;
mod reader;
mod requests;
mod sequence;

pub use analysis::{Analysis, Finding, Flow, FlowKey, Message, Outcome};
pub use describe::describe;
pub use event::{Cause, Event, Tone};
pub use fields::{Section, sections};
pub use page::{Counts, Page, Shapes, escape, page, render};
pub use reader::{Captured, Integrity, Item, Other, Others, items};

#[cfg(test)]
mod tests;
