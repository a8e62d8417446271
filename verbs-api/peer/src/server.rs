//! Who is let in: the listener, the token, one session at a time, and the bounds of lines and time.
//!
//! A connection has a thread, of which there are few; only the one that has shown the token gets a
//! card, and only one does. Touches TCP and threads.

use crate::protocol::{self, Command, Refusal, Request, limits};
use crate::session::Session;
use crate::visitors::{self, Timed, Visit};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// What an agent is told when it is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen; port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// The name of the device; the first one if there is none.
    pub device: Option<String>,
    /// Which of its ports.
    pub port: u8,
    /// What controllers have to show; drawn if there is none.
    pub token: Option<String>,
}

/// An agent that listens.
pub struct Server {
    listener: TcpListener,
    gate: Arc<Gate>,
}

/// Bytes of requests that are read at once, and of answers that leave at once.
const BUFFER: usize = 64 << 10;

/// What all connections share: each thread has one of its counted pointers.
struct Gate {
    options: Options,
    token: String,
    /// Held by the thread whose controller is served.
    session: Mutex<()>,
}

impl Server {
    /// Listens, and draws the token.
    ///
    /// # Errors
    /// If the address cannot be used, there is no such device, no libibverbs, or a token that is
    /// easily guessed.
    pub fn bind(options: &Options) -> Result<Self, Refusal> {
        // Said now, and not to the first controller.
        drop(Session::open(options.device.as_deref(), options.port)?);
        let unheard = |error| Refusal::os(format_args!("cannot listen on {}", options.listen), &error);
        let listener = TcpListener::bind(options.listen).map_err(unheard)?;
        let token = options.token.clone().map_or_else(draw_token, check_token)?;
        let gate = Gate { options: options.clone(), token, session: Mutex::new(()) };
        Ok(Self { listener, gate: Arc::new(gate) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What a controller has to show.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.gate.token
    }

    /// Serves controllers, until one of them has been served if `once`, or for ever.
    ///
    /// # Errors
    /// If no connection can be accepted any more.
    pub fn serve(&self, once: bool) -> io::Result<()> {
        let (listener, gate) = (self.listener.try_clone()?, Arc::clone(&self.gate));
        let (over, wait) = mpsc::channel();
        let failed = over.clone();
        thread::Builder::new().spawn(move || {
            let served = move |stream, visit| {
                if gate.admit(stream, visit) && once {
                    let _ = over.send(Ok(()));
                }
            };
            let _ = failed.send(visitors::accept(&listener, limits::CONNECTIONS, served));
        })?;
        wait.recv().unwrap_or(Ok(()))
    }
}

fn draw_token() -> protocol::Result<String> {
    let mut secret = [0; 16];
    let undrawn = |error| Refusal { text: format!("cannot draw a token: {error}"), errno: libc::EIO };
    getrandom::fill(&mut secret).map_err(undrawn)?;
    Ok(protocol::to_hex(&secret))
}

fn check_token(token: String) -> protocol::Result<String> {
    let text = format!("a token has {} characters at least, and no space", limits::TOKEN);
    let is_good = token.len() >= limits::TOKEN && token.chars().all(|c| c.is_ascii_graphic());
    if is_good { Ok(token) } else { Err(Refusal { text, errno: libc::EINVAL }) }
}

impl Gate {
    /// Asks for the token and serves the controller. Whether there was a session.
    fn admit(&self, stream: TcpStream, visit: Visit) -> bool {
        let mut lines = Lines::new(stream);
        let Ok(Some(line)) = lines.next(limits::FIRST_LINE, limits::FIRST_LINE_SECONDS) else { return false };
        let request = Request::parse(&line);
        let id = request.as_ref().map_or(0, |request| request.id);
        let refuse = |lines: &mut Lines, text: &str, errno| {
            let _ = lines.send(&protocol::answer(id, &Err(Refusal { text: text.to_owned(), errno })));
            false
        };
        let shown = request.as_ref().ok().filter(|request| request.command == Command::Hello);
        let shown = shown.and_then(|request| request.args.text("token").ok());
        if !shown.is_some_and(|shown| are_equal(shown.as_bytes(), self.token.as_bytes())) {
            return refuse(&mut lines, "the first request is hello with the token", libc::EACCES);
        }
        // The connection is no longer one of those that are ended to make room.
        drop(visit);
        // The lock says no more than that a session is on; one that panicked is over.
        let _session = match self.session.try_lock() {
            Ok(guard) => guard,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => {
                return refuse(&mut lines, "another controller is served", libc::EBUSY);
            }
        };
        let Options { device, port, .. } = &self.options;
        match (Session::open(device.as_deref(), *port), request) {
            (Ok(session), Ok(request)) => {
                // The connection is over, whatever the reason.
                let _ = serve(session, &request, &mut lines);
                true
            }
            (Err(refusal), _) => refuse(&mut lines, &refusal.text, refusal.errno),
            (Ok(_), Err((_, refusal))) => refuse(&mut lines, &refusal.text, refusal.errno),
        }
    }
}

/// Answers requests until the controller is gone, says nothing for too long, or says `bye`.
fn serve(mut session: Session, hello: &Request, lines: &mut Lines) -> io::Result<()> {
    lines.send(&protocol::answer(hello.id, &session.execute(hello)))?;
    while let Some(line) = lines.next(limits::LINE, limits::IDLE_SECONDS)? {
        let (id, result, is_last) = match Request::parse(&line) {
            Ok(request) => (request.id, session.execute(&request), request.command == Command::Bye),
            Err((id, refusal)) => (id, Err(refusal), false),
        };
        let answer = protocol::answer(id, &result);
        if is_last {
            return lines.send(&answer);
        }
        lines.send_soon(&answer)?;
    }
    Ok(())
}

/// Compares without telling by the time where the first difference is.
fn are_equal(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |sum, (left, right)| sum | (left ^ right)) == 0
}

/// Lines of a connection, in both directions. Answers to requests that came together leave
/// together.
struct Lines {
    stream: BufReader<Timed>,
    answers: Vec<u8>,
}

impl Lines {
    fn new(stream: TcpStream) -> Self {
        // Without it answers are late and right.
        let _ = stream.set_nodelay(true);
        let timed = Timed::new(stream, Duration::ZERO);
        Self { stream: BufReader::with_capacity(BUFFER, timed), answers: Vec::new() }
    }

    /// The next line, without more than `limit` bytes, which has to be whole after `seconds`;
    /// nothing at the end.
    fn next(&mut self, limit: usize, seconds: u64) -> io::Result<Option<Vec<u8>>> {
        self.stream.get_mut().restart(Duration::from_secs(seconds));
        let mut line = Vec::new();
        (&mut self.stream).take(limit as u64).read_until(b'\n', &mut line)?;
        if line.last() == Some(&b'\n') {
            return Ok(Some(line));
        }
        if line.len() >= limit {
            let refusal = Refusal { text: format!("a line has at most {limit} bytes"), errno: libc::EMSGSIZE };
            self.send(&protocol::answer(0, &Err(refusal)))?;
        }
        Ok(None)
    }

    /// Sends this line, behind those that wait.
    fn send(&mut self, line: &str) -> io::Result<()> {
        self.answers.extend(line.as_bytes());
        self.stream.get_mut().restart(Duration::from_secs(limits::ANSWER_SECONDS));
        let sent = self.stream.get_mut().write_all(&self.answers);
        self.answers.clear();
        sent
    }

    /// Sends this line, now or together with the answer to a request that is here already.
    fn send_soon(&mut self, line: &str) -> io::Result<()> {
        if self.answers.len() >= BUFFER || !self.stream.buffer().contains(&b'\n') {
            return self.send(line);
        }
        self.answers.extend(line.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_equal_only_as_a_whole() {
        assert!(are_equal(b"abc", b"abc"));
        assert!(!are_equal(b"abc", b"abd") && !are_equal(b"abc", b"ab") && !are_equal(b"", b"a"));
    }
}
