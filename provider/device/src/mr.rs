//! Memory regions as programs hold them: registering memory of the program, of the device, of a
//! dma-buf, or none.
//!
//! What is behind a key is the table's ([`roxe_memory::table`]). Touches no contents.

mod advise;
mod dmabuf;
mod null;
mod registration;

pub use advise::Advice;
pub use dmabuf::DmaBuf;
pub(crate) use registration::note_use;
pub use registration::{Mr, MrChange};

#[cfg(test)]
mod tests;
