//! Baseline: measures latency and bandwidth of UDP and TCP between two processes over the loopback
//! interface.

use crate::network::Site;
use crate::peer::{FarPeer, Peer, say};
use crate::sys;
use crate::work::Sample;
use roxe_tests::measure::Series;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// Payload of a datagram in bytes.
const DATAGRAM_LEN: usize = 4096;
/// Number of datagrams in one segmented send: as many as UDP's limit of 64 KiB allows.
const SEGMENTS: usize = 15;
/// Bytes of one write to a TCP stream.
const CHUNK_LEN: usize = 1 << 20;
/// Receive buffer of the UDP receiver in bytes.
const BUFFER: usize = 4 << 20;
/// Bytes of a message in a latency measurement.
const SMALL: usize = 8;

/// Measures half the round trip of `datagrams` of 8 bytes, with a call each, in microseconds. Both
/// sides spin.
pub(crate) fn udp_latency(site: &Site, datagrams: usize, time: Duration) -> io::Result<Sample> {
    let peer = FarPeer::start(site, &["udp-echo"])?;
    let socket = peer.socket()?;
    half_round_trip(time, || {
        (0..datagrams).try_for_each(|_| socket.send(&[7; SMALL]).map(drop))?;
        for _ in 0..datagrams {
            while would_block(socket.recv(&mut [0; 64]))?.is_none() {}
        }
        Ok(())
    })
}

/// Returns every datagram to the sender of the first one, spinning, until killed.
pub(crate) fn udp_echo(at: &str) -> io::Result<()> {
    let socket = UdpSocket::bind((at, 0))?;
    say(socket.local_addr()?.port())?;
    let mut buf = [0; 64];
    let (mut len, from) = socket.recv_from(&mut buf)?;
    socket.connect(from)?;
    socket.set_nonblocking(true)?;
    loop {
        socket.send(&buf[..len])?;
        len = loop {
            if let Some(len) = would_block(socket.recv(&mut buf))? {
                break len;
            }
        };
    }
}

/// Measures half the round trip of 8 bytes in a TCP connection with TCP_NODELAY, in microseconds.
/// Both sides spin.
pub(crate) fn tcp_latency(time: Duration) -> io::Result<Sample> {
    let peer = Peer::start(&["tcp-echo"])?;
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, peer.port))?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    half_round_trip(time, || {
        stream.write_all(&[7; SMALL])?;
        read_spinning(&mut stream, &mut [0; SMALL])
    })
}

/// Sends received bytes back until the peer disconnects.
pub(crate) fn tcp_echo() -> io::Result<()> {
    let mut stream = accept()?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut buf = [0; SMALL];
    loop {
        read_spinning(&mut stream, &mut buf)?;
        stream.write_all(&buf)?;
    }
}

fn read_spinning(stream: &mut TcpStream, buf: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < buf.len() {
        match would_block(stream.read(&mut buf[filled..]))? {
            Some(0) => return Err(ErrorKind::UnexpectedEof.into()),
            got => filled += got.unwrap_or(0),
        }
    }
    Ok(())
}

fn accept() -> io::Result<TcpStream> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    say(listener.local_addr()?.port())?;
    Ok(listener.accept()?.0)
}

/// Measures half the time of `once` in microseconds, from one clock reading to the next as in
/// perftest.
pub(crate) fn half_round_trip(time: Duration, mut once: impl FnMut() -> io::Result<()>) -> io::Result<Sample> {
    let (mut series, start) = (Series::default(), Instant::now());
    let mut last = start;
    while last - start < time {
        once()?;
        let now = Instant::now();
        series.push((now - last).as_secs_f64() * 1e6 / 2.0);
        last = now;
    }
    let figure = series.median().ok_or_else(|| io::Error::other("no round trip"))?;
    let tails = series.quantile(0.99).zip(series.quantile(0.999)).map(Into::into);
    Ok(Sample { figure, average: series.mean(), tails })
}

/// Measures received gigabytes per second of a stream of 4 KiB datagrams, with one or 15 per call.
pub(crate) fn udp_stream(segmented: bool, time: Duration) -> io::Result<f64> {
    let mut peer = Peer::start(&["udp-sink"])?;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let len = if segmented { DATAGRAM_LEN * SEGMENTS } else { DATAGRAM_LEN };
    sys::set_segment(&socket, if segmented { DATAGRAM_LEN } else { 0 })?;
    let (data, start) = (vec![0x5a; len], Instant::now());
    while start.elapsed() < time {
        socket.send_to(&data, (Ipv4Addr::LOCALHOST, peer.port))?;
    }
    peer.line()?.parse().map_err(io::Error::other)
}

/// Counts received bytes, and prints the rate between the first and the last datagram once the
/// stream pauses.
pub(crate) fn udp_sink() -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    sys::set_rcvbuf(&socket, BUFFER)?;
    sys::set_gro(&socket)?;
    say(socket.local_addr()?.port())?;
    let (mut buf, mut bytes) = (vec![0; 65536], 0);
    socket.recv(&mut buf)?;
    let start = Instant::now();
    let mut last = start;
    socket.set_nonblocking(true)?;
    while last.elapsed() < Duration::from_millis(50) {
        if let Some(len) = would_block(socket.recv(&mut buf))? {
            bytes += len;
            last = Instant::now();
        }
    }
    say(gigabytes_per_second(bytes, last - start))
}

/// Measures gigabytes per second of a TCP connection with writes of 1 MiB.
pub(crate) fn tcp_stream(time: Duration) -> io::Result<f64> {
    let mut peer = Peer::start(&["tcp-sink"])?;
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, peer.port))?;
    let (data, start) = (vec![0x5a; CHUNK_LEN], Instant::now());
    while start.elapsed() < time {
        stream.write_all(&data)?;
    }
    drop(stream);
    peer.line()?.parse().map_err(io::Error::other)
}

/// Reads a connection to its end and prints the rate.
pub(crate) fn tcp_sink() -> io::Result<()> {
    let mut stream = accept()?;
    let (mut buf, mut bytes, start) = (vec![0; CHUNK_LEN], 0, Instant::now());
    loop {
        match stream.read(&mut buf)? {
            0 => return say(gigabytes_per_second(bytes, start.elapsed())),
            len => bytes += len,
        }
    }
}

/// Returns 10^9 bytes per second.
#[expect(clippy::cast_precision_loss, reason = "a rate")]
pub(crate) fn gigabytes_per_second(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64() / 1e9
}

/// Returns the result of a call on a non-blocking socket; `None` if it would have blocked.
pub(crate) fn would_block<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e),
    }
}
