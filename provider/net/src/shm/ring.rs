//! A ring of packets from one process to another: the half of the [`Writer`] and the half of the
//! [`Reader`].
//!
//! The data is a sequence of *records*: a header of one word, addresses if they are not those of
//! the record before, then the packets of one run, as a link would move it, each with room for an
//! ICRC. A record starts on a cache line, and its packets so that the payload of the first one, and
//! of others of the usual sizes, ends on a multiple of 16: copies into and out of a ring that is
//! not aligned run at 7 GB/s, others at 12.
//!
//! The writer builds packets where the reader will find them, clears the header of the next record,
//! and publishes the record by storing its header, which says how long it is. So the reader polls
//! the line where the record will be: a small packet is one line that moves between the processors,
//! which takes 0.03 us where they share a cache and 0.15 where not. `Head` counts bytes and only
//! grows: the reader frees room by moving it.
//!
//! Either side may be broken and change any byte at any time. What is read out of shared memory is
//! read once and checked: a writer that is broken ([`Broken`]) is not read from any more. What is
//! written there ([`TxRoom`](roxe_transport::cx::TxRoom)) is never looked at again: a reader that
//! is broken spoils what it will read.
//!
//! Sleeping: the reader sets `Asleep`, then looks for a header again; the writer stores the header,
//! then looks at `Asleep`. `Waits` is the same handshake with the roles changed. Both are in
//! [`super::wakeup`].

#[cfg(any(test, feature = "fuzz"))]
mod check;
mod reader;
mod record;
#[cfg(any(test, feature = "testing"))]
mod testing;
#[cfg(test)]
mod tests;
mod writer;

#[cfg(any(test, feature = "fuzz"))]
pub use check::check_ring;
pub use reader::Reader;
pub use record::{Broken, Heading, MAX_RUN, Record, SIZE, SMALL, record_len};
pub use writer::Writer;
