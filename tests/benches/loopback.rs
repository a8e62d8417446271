//! `ib_write_bw` and `ib_write_lat` over roxe's loopback device beside raw UDP on the same machine, in the same run.
//!
//! Raw UDP is measured between two processes, as the verbs programs are: a spinning 8-byte round trip, a stream of
//! 4096-byte datagrams with one system call each, and the same stream as 60 KiB segmented sends (UDP GSO and GRO). The
//! rounds are interleaved because shared machines drift by a quarter within minutes; medians and ratios are printed.
//!
//! `cargo bench -p roxe-tests --bench loopback -- [ROUNDS]`

use roxe_tests::pair::{self, Program};
use roxe_tests::perftest;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const DATAGRAM: usize = 4096;
/// Datagrams in one segmented send: as many as fit below the 64 KiB limit of UDP.
const SEGMENTS: usize = 15;
const STREAM: Duration = Duration::from_millis(500);
const ROUND_TRIPS: usize = 20_000;
const SOL_UDP: libc::c_int = 17;
const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match words.first().map(String::as_str) {
        Some("echo") => echo(),
        Some("count") => count(words.get(1).is_some_and(|w| w == "gro")),
        _ => compare(words.iter().find_map(|w| w.parse().ok()).unwrap_or(5)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("loopback benchmark: {e}");
            ExitCode::FAILURE
        }
    }
}

/// One figure per round.
#[derive(Default)]
struct Series(Vec<f64>);

impl Series {
    fn median(&mut self) -> f64 {
        self.0.sort_by(f64::total_cmp);
        self.0.get(self.0.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

fn compare(rounds: usize) -> io::Result<()> {
    let [mut rtt, mut plain, mut gso, mut lat, mut bw] = [const { Series(Vec::new()) }; 5];
    for round in 0..rounds {
        rtt.0.push(raw_round_trip()?);
        plain.0.push(raw_stream(false)?);
        gso.0.push(raw_stream(true)?);
        lat.0.push(verbs("ib_write_lat", "-F -x 0 -s 8 -n 5000", 3)?);
        bw.0.push(verbs("ib_write_bw", "-F -x 0 -s 65536 -n 20000", 2)? * 1048576.0 / 1e9);
        eprintln!("round {} of {rounds} done", round + 1);
    }
    let (rtt, plain, gso, lat, bw) = (rtt.median(), plain.median(), gso.median(), lat.median(), bw.median());
    println!("medians of {rounds} interleaved rounds");
    println!("  raw UDP, 8 B, spinning: half a round trip          {:8.2} us", rtt / 2.0);
    println!("  ib_write_lat -s 8 (typical)                        {lat:8.2} us   {:.2} x raw", lat / (rtt / 2.0));
    println!("  raw UDP, 4 KiB datagrams, one call each            {plain:8.2} GB/s");
    println!("  raw UDP, 60 KiB segmented sends (GSO + GRO)        {gso:8.2} GB/s");
    println!(
        "  ib_write_bw -s 65536 (average)                     {bw:8.2} GB/s  {:.2} x plain, {:.2} x segmented",
        bw / plain,
        bw / gso
    );
    Ok(())
}

/// Runs a perftest pair and returns one figure of the client's result line.
fn verbs(tool: &str, args: &str, column: usize) -> io::Result<f64> {
    let port = 18_590;
    let program = |extra: &str| Program {
        name: tool.to_owned(),
        args: format!("{args} -p {port} {extra}").split_whitespace().map(str::to_owned).collect(),
    };
    let [server, client] = pair::run_pair(&program(""), &program("127.0.0.1"), port, &[], Duration::from_secs(60))?;
    let figure = perftest::rows(&client.output).first().and_then(|row| row.figures.get(column).copied());
    figure
        .filter(|_| client.ok)
        .ok_or_else(|| io::Error::other(format!("{tool} gave no result:\n{}\n{}", server.output, client.output)))
}

/// A copy of this program in another role; it prints the UDP port it listens on as its first line.
struct Peer {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    port: u16,
}

impl Peer {
    fn start(role: &[&str]) -> io::Result<Self> {
        let mut child =
            Command::new(std::env::current_exe()?).args(role).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("the peer has no output"))?;
        let mut peer = Self { child, lines: BufReader::new(stdout), port: 0 };
        peer.port = peer.line()?.parse().map_err(io::Error::other)?;
        Ok(peer)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Median round trip of an 8-byte datagram, microseconds; both sides spin.
fn raw_round_trip() -> io::Result<f64> {
    let peer = Peer::start(&["echo"])?;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    let mut series = Series(Vec::with_capacity(ROUND_TRIPS));
    let mut buf = [0; 64];
    for _ in 0..ROUND_TRIPS {
        let start = Instant::now();
        socket.send_to(&[7; 8], (Ipv4Addr::LOCALHOST, peer.port))?;
        while would_block(socket.recv(&mut buf))?.is_none() {}
        series.0.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(series.median())
}

/// Sends back every datagram, spinning, until killed by the parent.
fn echo() -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    println!("{}", socket.local_addr()?.port());
    io::stdout().flush()?;
    let mut buf = [0; 64];
    loop {
        if let Some((len, from)) = would_block(socket.recv_from(&mut buf))? {
            socket.send_to(&buf[..len.min(buf.len())], from)?;
        }
    }
}

fn would_block<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e),
    }
}

/// Received gigabytes per second of an open-loop stream of 4096-byte datagrams.
fn raw_stream(segmented: bool) -> io::Result<f64> {
    let mut peer = Peer::start(&["count", if segmented { "gro" } else { "plain" }])?;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let len = if segmented {
        set_option(&socket, SOL_UDP, UDP_SEGMENT, DATAGRAM as libc::c_int)?;
        DATAGRAM * SEGMENTS
    } else {
        DATAGRAM
    };
    let data = vec![0x5a; len];
    let start = Instant::now();
    while start.elapsed() < STREAM {
        socket.send_to(&data, (Ipv4Addr::LOCALHOST, peer.port))?;
    }
    peer.line()?.parse().map_err(io::Error::other)
}

/// Counts what arrives and prints the rate between the first and the last datagram once the stream pauses.
fn count(gro: bool) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, 4 << 20)?;
    if gro {
        set_option(&socket, SOL_UDP, UDP_GRO, 1)?;
    }
    println!("{}", socket.local_addr()?.port());
    io::stdout().flush()?;
    let mut buf = vec![0; 65536];
    let mut bytes = 0;
    socket.recv(&mut buf)?;
    let start = Instant::now();
    let mut last = start;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    while let Some(len) = would_block(socket.recv(&mut buf))? {
        bytes += len;
        last = Instant::now();
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let rate = bytes as f64 / (last - start).as_secs_f64() / 1e9;
    println!("{rate}");
    Ok(())
}

fn set_option(socket: &UdpSocket, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open for the life of `socket`, and the kernel reads four bytes from `value`, which is
    // a C int on this stack.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), 4) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
