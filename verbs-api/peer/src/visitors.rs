//! A time limit and a maximum number for connections of unauthenticated clients.
//!
//! The deadline is for a whole line or request, because with a limit per read a client could stay
//! forever by sending single bytes. When too many connections wait, the oldest is closed, so that
//! silent clients cannot block a client that sends its request at once.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A stream whose reads and writes fail after a deadline.
#[derive(Debug)]
pub struct Timed {
    stream: TcpStream,
    deadline: Instant,
}

impl Timed {
    /// Wraps a stream whose deadline is `time` from now.
    pub fn new(stream: TcpStream, time: Duration) -> Self {
        Self { stream, deadline: Instant::now() + time }
    }

    /// Sets the deadline to `time` from now.
    pub fn restart(&mut self, time: Duration) {
        self.deadline = Instant::now() + time;
    }

    /// Returns the time until the deadline. Fails if the deadline has passed.
    fn remaining(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        left.map(Some).ok_or_else(|| io::ErrorKind::TimedOut.into())
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.remaining()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.remaining()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Connections that may be closed to make room, the oldest first.
#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    streams: VecDeque<(u64, TcpStream)>,
}

/// Marks a connection as one that may be closed to make room; dropping it ends that.
#[derive(Debug)]
pub struct PendingConnection {
    id: u64,
    waiting: Arc<Mutex<Waiting>>,
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        lock(&self.waiting).streams.retain(|(id, _)| *id != self.id);
    }
}

// No code panics while it changes the queue, so the queue is consistent even if the lock is
// poisoned.
fn lock(waiting: &Mutex<Waiting>) -> std::sync::MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves each connection at `listener` in its own thread. At most `max` connections hold a
/// [`PendingConnection`]; one more closes the oldest of them. Fails if the listener fails.
pub fn accept<F>(listener: &TcpListener, max: usize, serve: F) -> io::Result<()>
where
    F: Fn(TcpStream, PendingConnection) + Send + Sync + 'static,
{
    let (waiting, serve) = (Arc::new(Mutex::new(Waiting::default())), Arc::new(serve));
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // The peer closed the connection before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => return Err(error),
        };
        let Ok(copy) = stream.try_clone() else { continue };
        let pending = {
            let mut all = lock(&waiting);
            while all.streams.len() >= max {
                // The connection's thread then reads the end of its stream and ends.
                all.streams.pop_front().map(|(_, oldest)| oldest.shutdown(Shutdown::Both));
            }
            let id = all.next;
            all.next += 1;
            all.streams.push_back((id, copy));
            PendingConnection { id, waiting: Arc::clone(&waiting) }
        };
        let serve = Arc::clone(&serve);
        // If no thread can be started, the connection is closed.
        let _ = thread::Builder::new().spawn(move || serve(stream, pending));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    /// Starts a server that echoes the first line of each connection, if it arrives in time, and
    /// then closes the connection.
    fn echo(time: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            accept(&listener, 3, move |stream, pending| {
                let mut timed = Timed::new(stream, time);
                let mut line = Vec::new();
                let mut byte = [0];
                while !line.ends_with(b"\n") && timed.read(&mut byte).is_ok_and(|count| count == 1) {
                    line.push(byte[0]);
                }
                drop(pending);
                if line.ends_with(b"\n") {
                    let _ = timed.write_all(&line);
                }
            })
        });
        address
    }

    fn answer(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"hello\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn slow_bytes_do_not_extend_deadline() {
        let address = echo(Duration::from_millis(300));
        let mut slow = TcpStream::connect(address).unwrap();
        // Each byte alone is in time; writes fail once the server has closed.
        let is_ended = (0..500).any(|_| {
            thread::sleep(Duration::from_millis(20));
            slow.write_all(b"x").is_err()
        });
        assert!(is_ended, "the server read ten seconds of bytes");
    }

    #[test]
    fn silent_connections_do_not_block_others() {
        let address = echo(Duration::from_secs(3600));
        let mut silent: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert_eq!(answer(address), "hello\n");
        // The oldest connections were closed.
        assert!(!silent[0].read(&mut [0]).is_ok_and(|count| count > 0));
        assert_eq!(answer(address), "hello\n");
    }
}
