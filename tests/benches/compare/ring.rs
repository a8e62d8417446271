//! Baseline: measures a ring in shared memory between two spinning processes. One copies messages
//! into the ring, the other copies them out.

use crate::peer::{Peer, say};
use crate::raw::{gigabytes_per_second, half_round_trip};
use crate::sys::Shared;
use crate::work::Sample;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a chunk of a long message. All chunks of a ring fill half of a second-level cache.
pub(crate) const CHUNK: usize = 32 << 10;
/// Number of chunks for long messages.
const CHUNKS: usize = 16;
/// Bytes of a chunk for a small message.
const SMALL: usize = 64;
/// Number of chunks for small messages.
const SMALLS: usize = 4096;
/// Bytes of a long message.
const MESSAGE_LEN: usize = 1 << 20;

pub(crate) type LongRings = Rings<CHUNK, CHUNKS>;
pub(crate) type SmallRings = Rings<SMALL, SMALLS>;

/// The ring of one direction. Each word is in its own cache lines.
#[repr(C, align(4096))]
struct Ring<const CHUNK: usize, const CHUNKS: usize> {
    /// Number of chunks that the producer has filled since the start.
    filled: Word,
    /// Number of chunks that the consumer has emptied since the start.
    emptied: Word,
    chunks: [[u8; CHUNK]; CHUNKS],
}

#[repr(C, align(128))]
struct Word(AtomicUsize);

/// Both rings of a pair of processes.
pub(crate) struct Rings<const CHUNK: usize, const CHUNKS: usize> {
    shared: Shared,
}

impl<const CHUNK: usize, const CHUNKS: usize> Rings<CHUNK, CHUNKS> {
    /// Length of both rings, in bytes.
    const TOTAL: usize = 2 * size_of::<Ring<CHUNK, CHUNKS>>();

    /// Creates rings and starts the other process on them.
    fn start(role: &str) -> io::Result<(Self, Peer)> {
        Self::start_with(role, &[])
    }

    /// Creates rings and starts the other process on them, with additional arguments.
    pub(crate) fn start_with(role: &str, words: &[&str]) -> io::Result<(Self, Peer)> {
        let shared = Shared::new(Self::TOTAL)?;
        let peer = Peer::start(&[&[role], words, &[&shared.fd().to_string()]].concat())?;
        Ok((Self { shared }, peer))
    }

    /// Maps the parent's rings in the other process.
    pub(crate) fn inherited(fd: &str) -> io::Result<Self> {
        let rings = Self { shared: Shared::inherited(fd.parse().map_err(io::Error::other)?, Self::TOTAL)? };
        say(0)?;
        Ok(rings)
    }

    /// Returns the ring towards the child, or the one `back` from it.
    fn ring(&self, back: bool) -> NonNull<Ring<CHUNK, CHUNKS>> {
        // SAFETY: the memory is TOTAL bytes long, so both rings lie in it.
        unsafe { self.shared.start().cast::<Ring<CHUNK, CHUNKS>>().add(usize::from(back)) }
    }

    /// Copies `part` into the next chunk of a ring once there is room.
    pub(crate) fn put(&self, back: bool, part: &[u8]) {
        let ring = self.ring(back).as_ptr();
        // SAFETY: the rings live as long as `self`; both words are atomics; by these words the
        // chunk is empty, so only the producer accesses it; `part` is no longer than a chunk.
        unsafe {
            let at = (*ring).filled.0.load(Ordering::Relaxed);
            while at - (*ring).emptied.0.load(Ordering::Acquire) == CHUNKS {
                std::hint::spin_loop();
            }
            let chunk = (&raw mut (*ring).chunks[at % CHUNKS]).cast::<u8>();
            chunk.copy_from_nonoverlapping(part.as_ptr(), part.len().min(CHUNK));
            (*ring).filled.0.store(at + 1, Ordering::Release);
        }
    }

    /// Copies the next chunk of a ring to `part` once it is filled.
    pub(crate) fn take(&self, back: bool, part: &mut [u8]) {
        let ring = self.ring(back).as_ptr();
        // SAFETY: as in `put`; by the words the chunk is filled, so only the consumer accesses it.
        unsafe {
            let at = (*ring).emptied.0.load(Ordering::Relaxed);
            while (*ring).filled.0.load(Ordering::Acquire) == at {
                std::hint::spin_loop();
            }
            let chunk = (&raw const (*ring).chunks[at % CHUNKS]).cast::<u8>();
            chunk.copy_to_nonoverlapping(part.as_mut_ptr(), part.len().min(CHUNK));
            (*ring).emptied.0.store(at + 1, Ordering::Release);
        }
    }

    fn is_empty(&self, back: bool) -> bool {
        let ring = self.ring(back).as_ptr();
        // SAFETY: as in `put`.
        unsafe { (*ring).filled.0.load(Ordering::Acquire) == (*ring).emptied.0.load(Ordering::Acquire) }
    }
}

/// Measures gigabytes per second of messages of 1 MiB.
pub(crate) fn stream(time: Duration) -> io::Result<f64> {
    let (rings, _peer) = LongRings::start("ring-sink")?;
    let (data, start) = (vec![0x5a; MESSAGE_LEN], Instant::now());
    let mut bytes = 0;
    while start.elapsed() < time {
        data.chunks(CHUNK).for_each(|part| rings.put(false, part));
        bytes += data.len();
    }
    while !rings.is_empty(false) {}
    Ok(gigabytes_per_second(bytes, start.elapsed()))
}

/// Copies long messages out of the ring, until killed.
pub(crate) fn sink(fd: &str) -> io::Result<()> {
    let (rings, mut data) = (LongRings::inherited(fd)?, vec![0; MESSAGE_LEN]);
    loop {
        data.chunks_mut(CHUNK).for_each(|part| rings.take(false, part));
    }
}

/// Measures million messages of 64 bytes per second, each in its own chunk.
pub(crate) fn messages(time: Duration) -> io::Result<f64> {
    let (rings, _peer) = SmallRings::start("ring-small-sink")?;
    let (start, mut sent) = (Instant::now(), 0);
    while start.elapsed() < time {
        (0..SMALLS).for_each(|_| rings.put(false, &[0x5a; SMALL]));
        sent += SMALLS;
    }
    while !rings.is_empty(false) {}
    #[expect(clippy::cast_precision_loss, reason = "less than 2^52")]
    Ok(sent as f64 / start.elapsed().as_secs_f64() / 1e6)
}

/// Copies small messages out of the ring, until killed.
pub(crate) fn small_sink(fd: &str) -> io::Result<()> {
    let (rings, mut message) = (SmallRings::inherited(fd)?, [0; SMALL]);
    loop {
        rings.take(false, &mut message);
    }
}

/// Measures half the round trip of 8 bytes in microseconds.
pub(crate) fn latency(time: Duration) -> io::Result<Sample> {
    let (rings, _peer) = LongRings::start("ring-echo")?;
    half_round_trip(time, || {
        rings.put(false, &[7; 8]);
        rings.take(true, &mut [0; 8]);
        Ok(())
    })
}

/// Returns messages of 8 bytes, until killed.
pub(crate) fn echo(fd: &str) -> io::Result<()> {
    let (rings, mut message) = (LongRings::inherited(fd)?, [0; 8]);
    loop {
        rings.take(false, &mut message);
        rings.put(true, &message);
    }
}
