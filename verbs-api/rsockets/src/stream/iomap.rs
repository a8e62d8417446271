//! Buffers of the program that its peer may write to directly.

use super::endpoint::target;
use crate::errno;
use crate::proto::conn::Iomap;
use roxe::MemoryRegion;
use std::io;

/// What this side has mapped.
#[derive(Debug, Default)]
pub(crate) struct Mappings(Vec<Mapping>);

#[derive(Debug)]
struct Mapping {
    region: MemoryRegion,
    /// Entry in the peer's table, if the peer may write.
    index: Option<u16>,
    offset: u64,
    announced: bool,
}

impl Mappings {
    /// Maps `region` at `offset`, or at its address for -1. Shared ones take one of the `room`
    /// entries that the peer has.
    ///
    /// # Errors
    /// ENOMEM if all are taken, EINVAL for an offset that is negative.
    pub(crate) fn add(&mut self, region: MemoryRegion, shared: bool, offset: i64, room: u16) -> io::Result<i64> {
        let addr = region.as_ptr().addr();
        let offset = match offset {
            -1 => addr as u64,
            offset => u64::try_from(offset).map_err(|_| errno::os(libc::EINVAL))?,
        };
        let index = match shared {
            true => Some(self.free_index(room).ok_or_else(|| errno::os(libc::ENOMEM))?),
            false => None,
        };
        self.0.push(Mapping { region, index, offset, announced: !shared });
        i64::try_from(offset).map_err(|_| errno::os(libc::EOVERFLOW))
    }

    fn free_index(&self, room: u16) -> Option<u16> {
        (0..room).find(|index| self.0.iter().all(|mapping| mapping.index != Some(*index)))
    }

    /// Ends the mapping of these bytes.
    ///
    /// # Errors
    /// EINVAL if there is none.
    pub(crate) fn remove(&mut self, addr: usize, len: usize) -> io::Result<()> {
        let is_it = |mapping: &Mapping| mapping.region.as_ptr().addr() == addr && mapping.region.len() == len;
        let at = self.0.iter().position(is_it).ok_or_else(|| errno::os(libc::EINVAL))?;
        self.0.swap_remove(at);
        Ok(())
    }

    /// The first that the peer has not been told of.
    pub(crate) fn unannounced(&self) -> Option<(u16, Iomap)> {
        let mapping = self.0.iter().find(|mapping| !mapping.announced)?;
        Some((mapping.index?, Iomap { offset: mapping.offset, place: target(&mapping.region) }))
    }

    /// The peer has been told.
    pub(crate) fn announced(&mut self, index: u16) {
        for mapping in self.0.iter_mut().filter(|mapping| mapping.index == Some(index)) {
            mapping.announced = true;
        }
    }
}
