//! Baseline: messages passed from one process to another, through a ring in shared memory or by one
//! copy out of the memory of the process that has them.

use crate::peer::say;
use crate::raw::gigabytes_per_second;
use crate::ring::{CHUNK, LongRings, SmallRings};
use crate::sys::read_of;
use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

/// Buffers that both sides use in turn.
const BUFFERS: usize = 4;

/// How messages are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handed {
    /// By `process_vm_readv`, not through a ring.
    pub(crate) one_copy: bool,
    /// The sender writes each message before it hands it over, and the receiver reads it. If not,
    /// the bytes stay in the caches of both processors.
    pub(crate) written: bool,
}

/// Receives a message, by the number of its buffer.
type Receive = Box<dyn FnMut(usize, &mut [u8]) -> io::Result<()>>;

/// Gigabytes per second of messages of `size` bytes.
pub(crate) fn stream(handed: Handed, size: usize, time: Duration) -> io::Result<f64> {
    let (size_word, written) = (size.to_string(), handed.written.to_string());
    let words = [size_word.as_str(), written.as_str()];
    let mut buffers = vec![vec![0; size]; BUFFERS];
    let mut receive: Receive = if handed.one_copy {
        let (rings, mut peer) = SmallRings::start_with("handed-source", &words)?;
        let places = (0..BUFFERS).map(|_| peer.line()?.parse().map_err(io::Error::other));
        let places = places.collect::<io::Result<Vec<u64>>>()?;
        (0..BUFFERS).for_each(|_| rings.put(false, &[]));
        Box::new(move |at, buffer| {
            rings.take(true, &mut []);
            read_of(peer.id(), places[at], buffer)?;
            rings.put(false, &[]);
            Ok(())
        })
    } else {
        let (rings, peer) = LongRings::start_with("ring-source", &words)?;
        Box::new(move |_, buffer| {
            let _alive = &peer;
            buffer.chunks_mut(CHUNK).for_each(|part| rings.take(true, part));
            Ok(())
        })
    };
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < time {
        for (at, buffer) in buffers.iter_mut().enumerate() {
            receive(at, buffer)?;
            if handed.written {
                let words = buffer.as_chunks().0;
                black_box(words.iter().fold(0, |sum: u64, word| sum.wrapping_add(u64::from_ne_bytes(*word))));
            }
            bytes += size;
        }
    }
    Ok(gigabytes_per_second(bytes, start.elapsed()))
}

/// Messages of the other process; each is written anew if requested.
struct Source {
    buffers: Vec<Vec<u8>>,
    written: bool,
}

impl Source {
    fn new([size, written]: [&str; 2]) -> io::Result<Self> {
        let size = size.parse().map_err(io::Error::other)?;
        Ok(Self { buffers: vec![vec![1; size]; BUFFERS], written: written == "true" })
    }

    /// Hands over messages until killed; `begin` comes before each.
    fn run(&mut self, mut begin: impl FnMut(), mut hand: impl FnMut(&[u8])) -> ! {
        for at in (0..BUFFERS).cycle() {
            begin();
            let buffer = &mut self.buffers[at];
            if self.written {
                buffer.fill(at as u8);
            }
            hand(buffer);
        }
        unreachable!("the buffers are used forever")
    }
}

/// Sends messages through a ring, until killed.
pub(crate) fn ring_source(words: [&str; 2], fd: &str) -> io::Result<()> {
    let (rings, mut source) = (LongRings::inherited(fd)?, Source::new(words)?);
    source.run(|| {}, |buffer| buffer.chunks(CHUNK).for_each(|part| rings.put(true, part)))
}

/// Tells where messages lie, and which may be read, until killed.
pub(crate) fn source(words: [&str; 2], fd: &str) -> io::Result<()> {
    let (rings, mut source) = (SmallRings::inherited(fd)?, Source::new(words)?);
    source.buffers.iter().try_for_each(|buffer| say(buffer.as_ptr().expose_provenance()))?;
    source.run(|| rings.take(false, &mut []), |_| rings.put(true, &[]))
}
