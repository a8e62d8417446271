//! Memory of the program as the card reaches it.
//!
//! A key names a [`region::Region`]: memory of the program, or a window that opens a part of it to
//! peers. A [`table::MemoryTable`] holds those of one context; whoever copies holds its
//! [`regions::Regions`], which check key, protection domain, rights and range of every access (IBA
//! §10.6) and copy through [`guard`], the only place that dereferences an address of the program. A
//! fault there ends in a value, never in a signal.
//!
//! | module | what it is |
//! |---|---|
//! | [`region`], [`table`], [`regions`] | an entry, the table, and the accesses |
//! | [`guard`] | guarded copies and atomics; bytes that another process may change at any time |
//! | [`crc`] | the sum of a payload for its ICRC, taken while it is copied |
//! | [`mapped`] | whether memory is mapped with the needed rights; pages of the card's own |
//! | [`prefetch`] | bringing what is about to be used into the cache |
//!
//! # The life of a key
//!
//! [`mapped::check`] makes sure that the memory is there, and [`table::MemoryTable::insert`] draws
//! a random key for it. A peer or a scatter/gather list names the key: whoever serves it takes
//! [`table::MemoryTable::hold`] for a batch of packets, looks the key up, checks domain, rights and
//! range, and copies. Binding a window gives another entry of the table a part of the region.
//! [`table::MemoryTable::remove`] waits until nobody holds the table, so that no access under the
//! key is under way when it returns, and the key never comes back for other memory by chance.
//!
//! Knows no queue pairs, no packets and no links. Start with [`region`].
//!
//! # Unsafe code
//!
//! In `guard` (touching the program's memory), `crc` (wide registers), `mapped` (system calls) and
//! `prefetch` (one instruction); everything else is safe.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod crc;
#[allow(unsafe_code)]
pub mod guard;
#[allow(unsafe_code)]
pub mod mapped;
#[allow(unsafe_code)]
pub mod prefetch;
pub mod region;
pub mod regions;
pub mod table;
#[cfg(any(test, feature = "testing"))]
#[allow(unsafe_code)]
#[doc(hidden)]
pub mod testing;
