//! Which requests wait for others to leave with, so that posting one by one costs a part of a
//! system call.
//!
//! Pure: told what is under way and what waits. What waits is taken along by the next
//! acknowledgement, which is why something must be under way, and by the next poll.

/// A request that is posted while this many are under way may wait for others to leave with: a
/// program that keeps that much under way is after throughput, and acknowledgements are sure to
/// come soon and to take along what waits.
const MIN_UNDER_WAY: u32 = 16;

/// A program that lets so many be under way at a time does so again: behind its first request,
/// which brings an acknowledgement, the others may wait. Without that 16 of every 100 messages of
/// `ib_write_bw`, which posts the next 100 when those have completed, left alone: it sent 19 times
/// for 100 messages of 64 bytes, and sends 5 times.
const DEEP: u32 = 32;

/// Times in a row that fewer were under way until the program is not believed to do that any more.
const SHALLOW_TIMES: u8 = 4;

/// As many requests, and as many bytes in messages as long as the newest, wait for each other at
/// most: they fit one segmented send.
const MAX_COALESCED: u32 = 32;
const MAX_COALESCED_BYTES: u32 = 60 << 10;

/// How many requests a program lets be under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Depth {
    /// The most since there were none.
    most: u32,
    /// Not 0: they were many not long ago.
    deep_times: u8,
}

impl Depth {
    /// There are so many now, after one was posted.
    #[inline]
    pub(crate) fn note(&mut self, count: u32) {
        if count == 1 {
            self.deep_times = if self.most >= DEEP { SHALLOW_TIMES } else { self.deep_times.saturating_sub(1) };
            self.most = 0;
        }
        self.most = self.most.max(count);
    }

    /// Whether the newest of `waiting` requests, with `length` bytes, may wait until there are more
    /// to send with it, behind so many that are under way.
    #[inline]
    pub(crate) fn may_wait(&self, under_way: u32, waiting: u32, length: u32) -> bool {
        let is_many = under_way >= MIN_UNDER_WAY || under_way > 0 && self.deep_times > 0;
        is_many && waiting < MAX_COALESCED && length.saturating_mul(waiting) < MAX_COALESCED_BYTES
    }
}
