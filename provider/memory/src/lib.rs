//! The program's memory as the card accesses it.
//!
//! A key refers to a [`region::Region`]: memory of the program, or a window on a part of it. A
//! [`table::MemoryTable`] holds the regions of one context. [`regions::Regions`], the read-locked
//! table, checks key, protection domain, rights and range of every access (IBA §10.6). It copies
//! through [`guard`], the only module that dereferences addresses of the program. A fault there is
//! returned as an error, never raised as a signal.
//!
//! | module | content |
//! |---|---|
//! | [`region`], [`table`], [`regions`] | an entry of the table, the table, the accesses |
//! | [`guard`] | guarded copies and atomics; bytes that another process may change at any time |
//! | [`crc`] | the checksum of a payload for its ICRC, computed during the copy |
//! | [`mapped`] | checks of mappings for a registration; mappings of device memory |
//! | [`prefetch`] | prefetches into the cache |
//!
//! # The life of a key
//!
//! [`mapped::check`] verifies the memory, and [`table::MemoryTable::insert`] draws a random key.
//! For a batch of packets, the responder locks the table ([`table::MemoryTable::hold`]); each
//! access looks the key up, checks domain, rights and range, and copies. Binding a window
//! fills its entry with a part of the region. [`table::MemoryTable::remove`] waits until no thread
//! holds the table, so no access under the key is in progress when it returns. A new key for other
//! memory is unlikely to equal the old one.
//!
//! # Unsafe code
//!
//! In `guard` (the program's memory), `crc` (SIMD intrinsics), `mapped` (system calls) and
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
