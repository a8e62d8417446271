//! The verbs objects of a stream: queue pair, completion queue and registered memory. Also the
//! mappings of the program's memory for the peer (`riomap`).

use crate::completions::Completions;
use crate::errno;
use crate::proto::conn::{ByteOrder, ConnData, IOMAP_LEN, Iomap, TARGET_LEN, TARGETS, Target};
use crate::proto::stream::Sizes;
use roxe::cm::CmId;
use roxe::{Access, MemoryRegion, ProtectionDomain, QueuePair, RKey, RemoteAddr};
use roxe_check::for_library;
use std::io;
use std::ops::Range;

/// `wr_id` of receives.
pub(crate) const RECV: u64 = 1 << 63;

/// Smallest inline limit of a queue pair, in bytes, so that notices need no buffer.
const MIN_INLINE: u32 = 32;

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) qp: QueuePair,
    pub(crate) completions: Completions,
    pub(crate) pd: ProtectionDomain,
    pub(crate) send_buffer: MemoryRegion,
    pub(crate) recv_buffer: MemoryRegion,
    /// The target list, followed by the table of mappings. The peer writes both.
    lists: MemoryRegion,
    pub(crate) sizes: Sizes,
}

impl Endpoint {
    pub(crate) fn build(id: &CmId, sizes: Sizes, inline: u32) -> io::Result<Self> {
        for_library(|| Self::try_build(id, sizes, inline)).map_err(errno::io_error)
    }

    fn try_build(id: &CmId, sizes: Sizes, inline: u32) -> Result<Self, roxe::Error> {
        let context = id.context()?;
        let pd = context.alloc_pd()?;
        let (sends, recvs) = (u32::from(sizes.send_queue), u32::from(sizes.recv_queue));
        let completions = Completions::create(&context, sends + recvs)?;
        let qp = pd
            .create_qp(&completions.cq, &completions.cq)
            .max_send_wr(sends)
            .max_recv_wr(recvs)
            .max_send_sge(2)
            .max_recv_sge(1)
            .max_inline_data(inline.max(MIN_INLINE))
            .sq_sig_all()
            .build_on(id)?;
        let peer_access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let lists_len = TARGETS * TARGET_LEN + usize::from(sizes.iomaps) * IOMAP_LEN;
        let endpoint = Self {
            send_buffer: pd.alloc_mr(sizes.send_buffer as usize, Access::LOCAL_WRITE)?,
            recv_buffer: pd.alloc_mr(sizes.recv_buffer as usize, peer_access)?,
            lists: pd.alloc_mr(lists_len, peer_access)?,
            qp,
            completions,
            pd,
            sizes,
        };
        for _ in 0..recvs {
            endpoint.post_recv()?;
        }
        Ok(endpoint)
    }

    /// Posts a receive request for one message. It needs no buffer: the peer WRITEs the data with
    /// immediate data, which consumes the request.
    pub(crate) fn post_recv(&self) -> Result<(), roxe::Error> {
        self.qp.post_recv(RECV, &[])
    }

    pub(crate) fn conn_data(&self) -> ConnData {
        let half = Target { len: self.sizes.recv_buffer / 2, ..self.buffer() };
        ConnData {
            order: ByteOrder::NATIVE,
            credits: self.sizes.recv_queue,
            iomaps: Some(self.sizes.iomaps),
            targets: Target { len: TARGETS as u32, ..target_of(&self.lists) },
            data: half,
        }
    }

    pub(crate) fn buffer(&self) -> Target {
        target_of(&self.recv_buffer)
    }

    /// Takes entry `index` from the target list; returns an empty target if the peer has not
    /// written it. Reads the length first, because the peer writes it last: an entry that is only
    /// partly written has length 0.
    pub(crate) fn take_target(&self, index: usize) -> Result<Target, roxe::Error> {
        let at = index * TARGET_LEN;
        let key_and_len = self.lists.load_u64(at + 8)?.to_ne_bytes();
        if key_and_len[4..] == [0; 4] {
            return Ok(Target::default());
        }
        let mut entry = [0; TARGET_LEN];
        self.lists.read(at, &mut entry)?;
        self.lists.write(at, &[0; TARGET_LEN])?;
        Ok(Target::decode(entry, ByteOrder::NATIVE))
    }

    pub(crate) fn read_iomap(&self, index: u16) -> Result<Iomap, roxe::Error> {
        let mut entry = [0; IOMAP_LEN];
        self.lists.read(TARGETS * TARGET_LEN + usize::from(index) * IOMAP_LEN, &mut entry)?;
        Ok(Iomap::decode_native(entry))
    }
}

pub(crate) const fn remote_addr(target: &Target) -> RemoteAddr {
    RemoteAddr { addr: target.addr, rkey: RKey(target.rkey) }
}

/// Converts a range of a ring to indices.
pub(crate) const fn index_range(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

pub(crate) fn target_of(region: &MemoryRegion) -> Target {
    let RemoteAddr { addr, rkey } = region.remote();
    Target { addr, rkey: rkey.0, len: u32::try_from(region.len()).unwrap_or(u32::MAX) }
}

/// Mappings of the program's memory (`riomap`).
#[derive(Debug, Default)]
pub(crate) struct Mappings(Vec<Mapping>);

#[derive(Debug)]
struct Mapping {
    region: MemoryRegion,
    /// Index in the peer's table; `None` if the mapping is local.
    index: Option<u16>,
    /// Offset at which the peer addresses its first byte.
    offset: u64,
    /// True if the peer knows the mapping, or does not have to.
    announced: bool,
}

impl Mappings {
    /// Maps `region` at `offset`, or at its address for -1; returns the offset. A shared mapping
    /// takes one of the `table_len` entries of the peer's table.
    ///
    /// # Errors
    /// ENOMEM if the table is full, EINVAL for a negative offset.
    pub(crate) fn add(&mut self, region: MemoryRegion, shared: bool, offset: i64, table_len: u16) -> io::Result<i64> {
        let addr = region.as_ptr().addr();
        let offset = match offset {
            -1 => addr as u64,
            offset => u64::try_from(offset).map_err(|_| errno::os(libc::EINVAL))?,
        };
        let index = match shared {
            true => Some(self.free_index(table_len).ok_or_else(|| errno::os(libc::ENOMEM))?),
            false => None,
        };
        self.0.push(Mapping { region, index, offset, announced: !shared });
        i64::try_from(offset).map_err(|_| errno::os(libc::EOVERFLOW))
    }

    fn free_index(&self, table_len: u16) -> Option<u16> {
        (0..table_len).find(|index| self.0.iter().all(|mapping| mapping.index != Some(*index)))
    }

    /// Removes the mapping of this memory.
    ///
    /// # Errors
    /// EINVAL if there is none.
    pub(crate) fn remove(&mut self, addr: usize, len: usize) -> io::Result<()> {
        let matches = |mapping: &Mapping| mapping.region.as_ptr().addr() == addr && mapping.region.len() == len;
        let index = self.0.iter().position(matches).ok_or_else(|| errno::os(libc::EINVAL))?;
        self.0.swap_remove(index);
        Ok(())
    }

    /// Returns the first mapping that the peer does not know yet.
    pub(crate) fn unannounced(&self) -> Option<(u16, Iomap)> {
        let mapping = self.0.iter().find(|mapping| !mapping.announced)?;
        Some((mapping.index?, Iomap { offset: mapping.offset, target: target_of(&mapping.region) }))
    }

    pub(crate) fn mark_announced(&mut self, index: u16) {
        for mapping in self.0.iter_mut().filter(|mapping| mapping.index == Some(index)) {
            mapping.announced = true;
        }
    }
}
