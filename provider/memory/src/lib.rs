//! Memory of the program as the card accesses it.
//!
//! A key names a [`region::Region`]: memory of the program, or a window onto part of it. A
//! [`table::MemoryTable`] holds the regions of one context. Copies hold its [`regions::Regions`],
//! which check key, protection domain, rights and range of every access (IBA §10.6) and copy
//! through [`guard`], the only place that dereferences an address of the program. A fault there is
//! a value, never a signal.
//!
//! | module | content |
//! |---|---|
//! | [`region`], [`table`], [`regions`] | an entry, the table, and the accesses |
//! | [`guard`] | guarded copies and atomics; bytes that another process may change at any time |
//! | [`crc`] | the checksum of a payload for its ICRC, computed during the copy |
//! | [`mapped`] | checks of mappings for a registration; pages of the card's own |
//! | [`prefetch`] | prefetches into the cache |
//!
//! # The life of a key
//!
//! [`mapped::check`] verifies the memory, and [`table::MemoryTable::insert`] draws a random key.
//! The executor of a request takes [`table::MemoryTable::hold`] for a batch of packets, looks the
//! key up, checks domain, rights and range, and copies. Binding a window gives its entry of the
//! table a part of the region. [`table::MemoryTable::remove`] waits until no thread holds the
//! table, so no access under the key is in progress when it returns, and the key does not come back
//! for other memory by chance.
//!
//! # Unsafe code
//!
//! In `guard` (the program's memory), `crc` (wide registers), `mapped` (system calls) and
//! `prefetch` (one instruction).
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
