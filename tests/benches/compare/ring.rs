//! What shared memory itself can do between two processes: a ring that one copies into and the
//! other out of; both spin.

use crate::peer::{Peer, say};
use crate::raw::{gigabytes_per_second, half_round_trip};
use crate::sys::Shared;
use crate::work::Sample;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What is copied at once, and how many of these a ring holds: together half of a second-level
/// cache.
const CHUNK: usize = 32 << 10;
const CHUNKS: usize = 16;
/// Bytes that programs send over and over.
const MESSAGE: usize = 1 << 20;
/// Bytes of both rings.
const TOTAL: usize = 2 * size_of::<Ring>();

/// One direction. Each word has cache lines of its own.
#[repr(C, align(4096))]
struct Ring {
    /// Chunks that the producer has filled since the beginning.
    filled: Word,
    /// Chunks that the consumer has emptied.
    emptied: Word,
    chunks: [[u8; CHUNK]; CHUNKS],
}

#[repr(C, align(128))]
struct Word(AtomicUsize);

/// Both rings of a pair of processes.
struct Rings {
    shared: Shared,
}

impl Rings {
    /// The ring towards the child, or the one from it.
    fn ring(&self, back: bool) -> NonNull<Ring> {
        // SAFETY: the memory is TOTAL bytes long, so both rings lie in it.
        unsafe { self.shared.start().cast::<Ring>().add(usize::from(back)) }
    }

    /// Puts `part` into a ring once there is room.
    fn put(&self, back: bool, part: &[u8]) {
        let ring = self.ring(back).as_ptr();
        // SAFETY: the rings live as long as `self`; both words are atomics; the producer alone
        // touches the chunk between `emptied` and `filled`, which the words say is this one; `part`
        // is no longer than a chunk.
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

    /// Takes the next chunk out of a ring into `part`.
    fn take(&self, back: bool, part: &mut [u8]) {
        let ring = self.ring(back).as_ptr();
        // SAFETY: as in `put`, with the consumer and the chunks that are filled.
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

/// Starts the other process on new rings.
fn start(role: &str) -> io::Result<(Rings, Peer)> {
    let shared = Shared::new(TOTAL)?;
    let peer = Peer::start(&[role, &shared.fd().to_string()])?;
    Ok((Rings { shared }, peer))
}

/// In the other process: the rings of the parent.
fn inherited(fd: &str) -> io::Result<Rings> {
    let rings = Rings { shared: Shared::inherited(fd.parse().map_err(io::Error::other)?, TOTAL)? };
    say(0)?;
    Ok(rings)
}

/// Gigabytes per second of messages of 1 MiB.
pub(crate) fn stream(time: Duration) -> io::Result<f64> {
    let (rings, _peer) = start("ring-sink")?;
    let (data, begun) = (vec![0x5a; MESSAGE], Instant::now());
    let mut bytes = 0;
    while begun.elapsed() < time {
        data.chunks(CHUNK).for_each(|part| rings.put(false, part));
        bytes += data.len();
    }
    while !rings.is_empty(false) {}
    Ok(gigabytes_per_second(bytes, begun.elapsed()))
}

/// Copies out what comes, until killed.
pub(crate) fn sink(fd: &str) -> io::Result<()> {
    let (rings, mut data) = (inherited(fd)?, vec![0; MESSAGE]);
    loop {
        data.chunks_mut(CHUNK).for_each(|part| rings.take(false, part));
    }
}

/// Half the median round trip of 8 bytes, microseconds.
pub(crate) fn latency(time: Duration) -> io::Result<Sample> {
    let (rings, _peer) = start("ring-echo")?;
    half_round_trip(time, || {
        rings.put(false, &[7; 8]);
        rings.take(true, &mut [0; 8]);
        Ok(())
    })
}

/// Sends back what comes, until killed.
pub(crate) fn echo(fd: &str) -> io::Result<()> {
    let (rings, mut message) = (inherited(fd)?, [0; 8]);
    loop {
        rings.take(false, &mut message);
        rings.put(true, &message);
    }
}
