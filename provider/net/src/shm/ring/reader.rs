//! The half of a ring that reads: shows each run where it is, and gives its room back.

use super::super::count::READ;
use super::super::memory::{SharedMemory, Word};
use super::super::wakeup;
use super::record::{Broken, HEADER_LEN, Record, RecordHeader, STAGED};
use crate::link::RxMeta;
use roxe_base::uses::Counted;
use roxe_wire::Gid;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// The half that reads. One thread at a time does.
#[derive(Debug)]
pub struct Reader {
    pub(super) memory: SharedMemory,
    /// What of the ring has been read, as the shared word says.
    head: AtomicU64,
    /// Source and destination of the last record, each as two words.
    addresses: [AtomicU64; 4],
    _counted: Counted<'static>,
}

impl Reader {
    /// The ring with `size` bytes of data in a file that its writer has sent.
    pub(crate) fn open(fd: &OwnedFd, size: usize) -> io::Result<Self> {
        let (memory, head, addresses) = (SharedMemory::open(fd, size)?, AtomicU64::new(0), Default::default());
        Ok(Self { memory, head, addresses, _counted: Counted::new(&READ) })
    }

    /// Whether there is no record to read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.next_header() == 0
    }

    /// Bytes that were ever read.
    #[inline]
    pub fn read_so_far(&self) -> u64 {
        self.head.load(Ordering::Relaxed)
    }

    /// Bytes of data: a writer that has ended left no more than this behind.
    pub fn size(&self) -> u64 {
        self.memory.size()
    }

    /// The header of the next record.
    #[inline]
    fn next_header(&self) -> u64 {
        self.memory.header(self.head.load(Ordering::Relaxed)).load(Ordering::Acquire)
    }

    /// Shows the next run to `take`, where it is: copying all of it out cost 10 % at 1 MB messages.
    /// Then its room is the writer's again, also if `take` panics: the same run would meet the same
    /// bug for ever. False: the ring is empty.
    #[inline]
    pub fn next(&self, take: impl FnOnce(Record<'_>)) -> Result<bool, Broken> {
        let word = self.next_header();
        if word == 0 {
            return Ok(false);
        }
        let header = RecordHeader::parse(word).ok_or(Broken)?;
        let head = self.head.load(Ordering::Relaxed);
        let (src, dst) = self.addresses(head, header.goes_on);
        let bytes = self.memory.view(head + header.start() as u64, header.len).ok_or(Broken)?;
        bytes.prefetch(STAGED);
        let RecordHeader { len, segment, joined, traffic_class, hop_limit, sealed, .. } = header;
        let meta = RxMeta { segment, traffic_class, hop_limit, sealed, by_ring: true, ..RxMeta::alone(len, src, dst) };
        let _shown = Shown { reader: self, end: head + header.extent() };
        take(Record { meta, bytes, joined });
        Ok(true)
    }

    /// Source and destination of the record at `head`.
    #[inline]
    fn addresses(&self, head: u64, goes_on: bool) -> (Gid, Gid) {
        if !goes_on {
            for (at, word) in (0..).zip(&self.addresses) {
                let mut bytes = [0; 8];
                self.memory.read(head + (HEADER_LEN + 8 * at) as u64, &mut bytes);
                word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
            }
        }
        let [s0, s1, d0, d1] = self.addresses.each_ref().map(|word| u128::from(word.load(Ordering::Relaxed)));
        (Gid((s0 | s1 << 64).to_le_bytes()), Gid((d0 | d1 << 64).to_le_bytes()))
    }

    /// Whether the writer waits for room and must be told now that there is some; asked after
    /// reading.
    #[inline]
    pub fn must_tell(&self) -> bool {
        wakeup::must_tell(self.memory.word(Word::Waits), self.head.load(Ordering::Relaxed))
    }

    /// From now on the writer wakes this process, once. True: there is a record already, so do not
    /// sleep.
    pub fn prepare_sleep(&self) -> bool {
        wakeup::sleep(self.memory.word(Word::Asleep), || !self.is_empty())
    }

    /// The reader does not sleep any more: the writer need not wake it.
    pub fn awake(&self) {
        wakeup::awake(self.memory.word(Word::Asleep));
    }
}

/// A run that is being looked at, up to `end`.
struct Shown<'a> {
    reader: &'a Reader,
    end: u64,
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.reader.head.store(self.end, Ordering::Relaxed);
        self.reader.memory.word(Word::Head).store(self.end, Ordering::Release);
    }
}
