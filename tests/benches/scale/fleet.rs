//! Queue pairs connected with those of threads of another process.

use super::{MAX_SIZE, OUTSTANDING, OUTSTANDING_EACH, REMOTE, Result, TIME, open, queue_pair};
use roxe::{CompletionQueue, Endpoint, MemoryRegion, QueuePair, RemoteAddr, WorkCompletion, WorkRequest};
use roxe_tests::measure::pin::{self, End};
use std::io::{self, BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

/// A process that is the target of WRITEs; each of its threads has the same number of queue pairs.
pub(crate) struct Server {
    child: Child,
    /// Standard input: endpoints of our queue pairs, then numbers of threads that start or stop
    /// polling.
    input: ChildStdin,
    /// Standard output, see [`Server::connect_thread`].
    output: Lines<BufReader<ChildStdout>>,
    /// Number of its threads whose queue pairs are connected.
    connected: usize,
}

impl Server {
    pub(crate) fn launch(queue_pairs: usize, threads: usize) -> Result<Self> {
        let mut words = pin::prefix(End::Server);
        words.extend([std::env::current_exe()?.to_string_lossy().into_owned(), "serve".to_owned()]);
        words.extend([queue_pairs.to_string(), threads.to_string()]);
        let mut child =
            Command::new(&words[0]).args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take().ok_or("no input")?, child.stdout.take().ok_or("no output")?);
        Ok(Self { child, input, output: BufReader::new(output).lines(), connected: 0 })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    fn line(&mut self) -> Result<String> {
        Ok(self.output.next().ok_or("the server ended early")??)
    }

    /// Connects all queue pairs with those of the server's next thread, and returns its memory.
    ///
    /// The thread prints its memory on the first line, then an endpoint per line.
    fn connect_thread(&mut self, qps: &[QueuePair]) -> Result<RemoteAddr> {
        let target = self.line()?.parse()?;
        let peers = qps.iter().map(|_| Ok(self.line()?.parse()?)).collect::<Result<Vec<Endpoint>>>()?;
        for (qp, peer) in qps.iter().zip(&peers) {
            writeln!(self.input, "{}", qp.endpoint())?;
            qp.connect(peer)?;
        }
        self.input.flush()?;
        self.line()?;
        self.connected += 1;
        Ok(target)
    }

    /// Lets the server's thread of this fleet start or stop polling.
    pub(crate) fn toggle(&mut self, fleet: &Fleet) -> Result<()> {
        Ok(writeln!(self.input, "{}", fleet.thread)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Queue pairs of this process, connected with those of one thread of a server.
pub(crate) struct Fleet {
    pub(crate) qps: Vec<QueuePair>,
    cq: CompletionQueue,
    region: MemoryRegion,
    target: RemoteAddr,
    /// Number of the server's thread.
    thread: usize,
    /// Number of messages posted so far, on the queue pairs in turn.
    pub(crate) turn: usize,
}

impl Fleet {
    pub(crate) fn connect(count: usize, server: &mut Server) -> Result<Self> {
        let (_, pd, cq) = open(OUTSTANDING_EACH * count)?;
        let region = pd.alloc_mr(MAX_SIZE, REMOTE)?;
        let qps = (0..count).map(|_| queue_pair(&pd, &cq)).collect::<Result<Vec<_>>>()?;
        let thread = server.connected;
        let target = server.connect_thread(&qps)?;
        Ok(Self { qps, cq, region, target, thread, turn: 0 })
    }

    /// Measures the rate of messages on all queue pairs in turn, in million per second.
    ///
    /// Completions after the end of the measurement do not count: with many outstanding, the last
    /// ones take long.
    pub(crate) fn rate(&mut self, size: usize, outstanding: usize) -> Result<f64> {
        let source = [self.region.slice(..size)?];
        let (start, mut posted, mut done, mut rate) = (Instant::now(), 0_u32, 0_u32, None);
        let mut out = [WorkCompletion::default(); OUTSTANDING];
        while rate.is_none() || posted > done {
            let taken = start.elapsed();
            if taken >= TIME && rate.is_none() {
                rate = Some(f64::from(done) / taken.as_secs_f64() / 1e6);
            }
            // Bounds the number posted between two polls.
            let room = if rate.is_none() { outstanding - (posted - done) as usize } else { 0 };
            for _ in 0..room.min(OUTSTANDING) {
                let qp = &self.qps[self.turn % self.qps.len()];
                qp.post_send(&WorkRequest::write(&source, self.target).signaled())?;
                self.turn += 1;
                posted += 1;
            }
            for completion in self.cq.poll(&mut out)? {
                completion.check()?;
                done += 1;
            }
        }
        rate.ok_or_else(|| "the time never passed".into())
    }
}

/// Runs the server, with this number of queue pairs for each thread, until its input ends.
pub(crate) fn serve(count: usize, threads: usize) -> Result<()> {
    thread::scope(|scope| {
        let mut polls = Vec::new();
        for _ in 0..threads {
            let (ready, is_ready) = channel();
            let flag = Arc::new(AtomicBool::new(false));
            let flag_of_thread = flag.clone();
            let poller = scope.spawn(move || {
                let connected = accept(count).inspect_err(|e| eprintln!("scale: {e}"));
                let Ok((_qps, _region, cq)) = connected else { std::process::exit(1) };
                let _ = ready.send(());
                poll_while(&flag_of_thread, &cq)
            });
            is_ready.recv()?;
            polls.push((flag, poller));
        }
        for line in io::stdin().lock().lines() {
            let thread: usize = line?.parse()?;
            let (flag, poller) = polls.get(thread).ok_or("there is no such thread")?;
            flag.fetch_xor(true, Ordering::Relaxed);
            poller.thread().unpark();
        }
        // The client has ended.
        std::process::exit(0);
    })
}

/// Creates queue pairs and connects them with those of the client.
fn accept(count: usize) -> Result<(Vec<QueuePair>, MemoryRegion, CompletionQueue)> {
    let (_context, pd, cq) = open(0)?;
    let region = pd.alloc_mr(MAX_SIZE, REMOTE)?;
    let qps = (0..count).map(|_| queue_pair(&pd, &cq)).collect::<Result<Vec<_>>>()?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    writeln!(out, "{}", region.remote())?;
    qps.iter().try_for_each(|qp| writeln!(out, "{}", qp.endpoint()))?;
    out.flush()?;
    let mut lines = io::stdin().lock().lines();
    for qp in &qps {
        qp.connect(&lines.next().ok_or("the client ended early")??.parse()?)?;
    }
    writeln!(out, "connected")?;
    out.flush()?;
    Ok((qps, region, cq))
}

/// Polls while the flag is set and ignores successful completions; an error ends the process.
fn poll_while(polls: &AtomicBool, cq: &CompletionQueue) {
    let mut completions = [WorkCompletion::default(); 4];
    loop {
        if !polls.load(Ordering::Relaxed) {
            thread::park();
        } else if let Err(e) = cq.poll(&mut completions) {
            eprintln!("scale: {e}");
            std::process::exit(1);
        }
    }
}
