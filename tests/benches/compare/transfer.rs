//! Baseline: measures the transfer of messages between processes, through a ring in shared memory
//! or by one copy from the memory of the sender.

use crate::peer::say;
use crate::raw::gigabytes_per_second;
use crate::ring::{CHUNK, LongRings, SmallRings};
use crate::sys::read_process;
use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

/// Number of buffers that both sides use in turn.
const BUFFERS: usize = 4;

/// Method by which messages are transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    /// True for one copy by `process_vm_readv` instead of a ring.
    pub(crate) one_copy: bool,
    /// True if the sender writes each message before the transfer and the receiver reads it
    /// afterwards. If false, the bytes stay in the caches of both processors.
    pub(crate) written: bool,
}

/// Receives a message from the buffer with this index.
type Receive = Box<dyn FnMut(usize, &mut [u8]) -> io::Result<()>>;

/// Measures gigabytes per second of messages of `size` bytes.
pub(crate) fn stream(transfer: Transfer, size: usize, time: Duration) -> io::Result<f64> {
    let (size_word, written) = (size.to_string(), transfer.written.to_string());
    let words = [size_word.as_str(), written.as_str()];
    let mut buffers = vec![vec![0; size]; BUFFERS];
    let mut receive: Receive = if transfer.one_copy {
        let (rings, mut peer) = SmallRings::start_with("handed-source", &words)?;
        let addresses = (0..BUFFERS).map(|_| peer.line()?.parse().map_err(io::Error::other));
        let addresses = addresses.collect::<io::Result<Vec<u64>>>()?;
        (0..BUFFERS).for_each(|_| rings.put(false, &[]));
        Box::new(move |at, buffer| {
            rings.take(true, &mut []);
            read_process(peer.id(), addresses[at], buffer)?;
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
        for (index, buffer) in buffers.iter_mut().enumerate() {
            receive(index, buffer)?;
            if transfer.written {
                let words = buffer.as_chunks().0;
                black_box(words.iter().fold(0, |sum: u64, word| sum.wrapping_add(u64::from_ne_bytes(*word))));
            }
            bytes += size;
        }
    }
    Ok(gigabytes_per_second(bytes, start.elapsed()))
}

/// The messages of the sender.
struct Source {
    buffers: Vec<Vec<u8>>,
    written: bool,
}

impl Source {
    fn new([size, written]: [&str; 2]) -> io::Result<Self> {
        let size = size.parse().map_err(io::Error::other)?;
        Ok(Self { buffers: vec![vec![1; size]; BUFFERS], written: written == "true" })
    }

    /// Sends messages until killed; calls `begin` before and `send` for each.
    fn run(&mut self, mut begin: impl FnMut(), mut send: impl FnMut(&[u8])) -> ! {
        for at in (0..BUFFERS).cycle() {
            begin();
            let buffer = &mut self.buffers[at];
            if self.written {
                buffer.fill(at as u8);
            }
            send(buffer);
        }
        unreachable!("the buffers are used forever")
    }
}

/// Sends messages through a ring, until killed.
pub(crate) fn ring_source(words: [&str; 2], fd: &str) -> io::Result<()> {
    let (rings, mut source) = (LongRings::inherited(fd)?, Source::new(words)?);
    source.run(|| {}, |buffer| buffer.chunks(CHUNK).for_each(|part| rings.put(true, part)))
}

/// Prints the addresses of messages, then signals in a ring which of them can be read, until
/// killed.
pub(crate) fn source(words: [&str; 2], fd: &str) -> io::Result<()> {
    let (rings, mut source) = (SmallRings::inherited(fd)?, Source::new(words)?);
    source.buffers.iter().try_for_each(|buffer| say(buffer.as_ptr().expose_provenance()))?;
    source.run(|| rings.take(false, &mut []), |_| rings.put(true, &[]))
}
