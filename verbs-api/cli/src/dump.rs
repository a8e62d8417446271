//! `roxe dump FILE`: the RoCEv2 packets of a capture in the field's words, what the connection
//! manager says in them, and whether each is whole.
//!
//! Reads the file; what packets mean is the business of `roxe_wire`.

use roxe_wire::capture::{Frame, frames, ip_packet};
use roxe_wire::cm::Mad;
use roxe_wire::{MAX_PAYLOAD, NetHeader, Packet, ParseError, icrc};
use std::error::Error;
use std::fmt;
use std::fs;
use std::io::{BufWriter, Write, stdout};
use std::path::PathBuf;

/// What `roxe dump` was asked to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Stop at the first bad packet, and fail.
    #[arg(long)]
    check: bool,
    /// The capture, for example of `tcpdump -i lo -w FILE udp port 4791`.
    file: PathBuf,
}

/// Prints the file.
pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let name = args.file.display();
    let file = fs::read(&args.file).map_err(|error| format!("cannot read {name}: {error}"))?;
    dump(&file, args.check, BufWriter::new(stdout().lock())).map_err(|error| match error {
        Stop::Output(error) => error.into(),
        other => format!("{name}: {other}").into(),
    })
}

/// Why the output ends early.
#[derive(Debug, thiserror::Error)]
enum Stop {
    #[error("{0}.\n  Record one with `tcpdump -i lo -w FILE udp port 4791`.")]
    NotACapture(roxe_wire::capture::CaptureError),
    #[error("cannot go on behind frame {0}: {1}")]
    Broken(usize, roxe_wire::capture::CaptureError),
    #[error("frame {0} is bad: {1}")]
    Bad(usize, Verdict),
    #[error("{0}")]
    Output(#[from] std::io::Error),
}

fn dump(file: &[u8], check: bool, mut out: impl Write) -> Result<(), Stop> {
    let mut counts = Counts::default();
    let mut start = None;
    for (number, frame) in (1..).zip(frames(file).map_err(Stop::NotACapture)?) {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => {
                writeln!(out, "{counts}")?;
                out.flush()?;
                return Err(Stop::Broken(number - 1, error));
            }
        };
        let time = frame.timestamp_ns.saturating_sub(*start.get_or_insert(frame.timestamp_ns));
        let packets = packets(&frame);
        counts.skipped += usize::from(packets.is_empty());
        for (net, payload) in packets {
            let verdict = judge(&net, payload);
            counts.packets += 1;
            counts.bad += usize::from(verdict != Verdict::Good);
            writeln!(out, "{}", Line { time, net, payload, verdict, comment: frame.comment })?;
            if check && verdict != Verdict::Good {
                out.flush()?;
                return Err(Stop::Bad(number, verdict));
            }
        }
    }
    writeln!(out, "{counts}")?;
    Ok(out.flush()?)
}

/// What was seen; the last line.
#[derive(Debug, Default)]
struct Counts {
    packets: usize,
    bad: usize,
    skipped: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets, bad, skipped } = self;
        write!(f, "{packets} RoCEv2 packets, {bad} of them bad; {skipped} other frames skipped")
    }
}

/// Whether a packet is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    /// The bytes make no packet.
    Malformed(ParseError),
    /// The ICRC does not fit the bytes.
    WrongIcrc,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Good => f.write_str("icrc ok"),
            Self::Malformed(error) => write!(f, "malformed: {error}"),
            Self::WrongIcrc => f.write_str("icrc wrong: the packet was damaged on its way, or sent wrong"),
        }
    }
}

fn judge(net: &NetHeader, payload: &[u8]) -> Verdict {
    match Packet::parse(payload) {
        Err(error) => Verdict::Malformed(error),
        Ok(_) if !icrc::verify(net, payload) => Verdict::WrongIcrc,
        Ok(_) => Verdict::Good,
    }
}

/// The RoCEv2 packets of a frame: none, one, or the segments of a batch that the sender left to the
/// network device to split, which is captured before it is split.
pub(crate) fn packets<'f>(frame: &Frame<'f>) -> Vec<(NetHeader, &'f [u8])> {
    // Otherwise cut short by the capture, or another protocol: nothing to judge.
    let Some(Ok((net, payload))) = ip_packet(frame.link, frame.data).map(NetHeader::parse_ip) else {
        return Vec::new();
    };
    if roxe_provider::is_probe(payload) {
        return Vec::new();
    }
    let size = match judge(&net, payload) {
        Verdict::Good => payload.len(),
        _ => segment_size(&net, payload).unwrap_or(payload.len()),
    };
    let numbered = payload.chunks(size.max(1)).zip(0u16..);
    numbered.map(|(segment, index)| (segment_header(&net, index), segment)).collect()
}

/// The kernel numbers the segments of a batch one by one in their IPv4 identification.
fn segment_header(net: &NetHeader, index: u16) -> NetHeader {
    let ident = if net.is_ipv4() { net.ident.wrapping_add(index) } else { net.ident };
    NetHeader { ident, ..*net }
}

/// Bytes of each segment of a batch, the last excepted: the length at which the first segment is a
/// whole packet.
fn segment_size(net: &NetHeader, payload: &[u8]) -> Option<usize> {
    /// `UDP_MAX_SEGMENTS` of Linux.
    const MAX_SEGMENTS: usize = 128;
    /// No packet has more bytes around its payload.
    const MAX_HEADERS: usize = 64;
    let shortest = payload.len().div_ceil(MAX_SEGMENTS).next_multiple_of(4);
    let longest = payload.len().saturating_sub(1).min(MAX_PAYLOAD + MAX_HEADERS);
    let mut sizes = (shortest..=longest).step_by(4);
    sizes.find(|size| payload.get(..*size).is_some_and(|first| judge(net, first) == Verdict::Good))
}

/// One packet, as it is printed.
struct Line<'a> {
    /// Nanoseconds since the first frame.
    time: u64,
    net: NetHeader,
    payload: &'a [u8],
    verdict: Verdict,
    /// What the file says about it.
    comment: &'a str,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.time / 1_000_000_000, self.time % 1_000_000_000 / 1000);
        write!(f, "{seconds:>3}.{micros:06} {} > {}  ", self.net.src.to_ip(), self.net.dst.to_ip())?;
        match Packet::parse(self.payload) {
            Ok(packet) => {
                write!(f, "{packet}  ")?;
                self.fmt_mad(&packet, f)?;
                write!(f, "{}", self.verdict)?;
            }
            Err(_) => write!(f, "{} bytes  {}", self.payload.len(), self.verdict)?,
        }
        if self.comment.is_empty() { Ok(()) } else { write!(f, "  # {}", self.comment) }
    }
}

impl Line<'_> {
    /// What the connection manager says in this packet, unless the comment says it.
    fn fmt_mad(&self, packet: &Packet<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Mad::of_packet(packet).map(|mad| mad.map(|mad| mad.to_string())) {
            Some(Ok(text)) if !self.comment.contains(&text) => write!(f, "{text}  "),
            Some(Err(error)) => write!(f, "{error}  "),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_wire::{Bth, Header, Kind, Psn, Qpn, Request, SendTail};
    use std::net::Ipv4Addr;

    fn net(ident: u16) -> NetHeader {
        let loopback = Ipv4Addr::LOCALHOST.into();
        NetHeader { src: loopback, dst: loopback, src_port: 0xc000, ident, ..NetHeader::default() }
    }

    fn segment(psn: u32, len: usize, ident: u16) -> Vec<u8> {
        let header = Header {
            bth: Bth::new(Qpn::new(0x11), Psn::new(psn)),
            kind: Kind::RcRequest(Request::SendOnly(SendTail::Plain)),
        };
        let mut datagram = vec![0; header.padded_len(len) + icrc::LEN];
        let end = datagram.len() - icrc::LEN;
        header.emit(len, &mut datagram[..end]).unwrap().fill(psn as u8);
        icrc::seal(&net(ident), &mut datagram);
        datagram
    }

    #[test]
    fn a_batch_is_taken_apart() {
        let batch = [segment(1, 64, 7), segment(2, 64, 8), segment(3, 10, 9)];
        let size = segment_size(&net(7), &batch.concat()).unwrap();
        assert_eq!(size, batch[0].len());
        for (index, part) in batch.concat().chunks(size).enumerate() {
            assert_eq!(judge(&segment_header(&net(7), index as u16), part), Verdict::Good, "{index}");
        }
    }

    #[test]
    fn damage_is_not_mistaken_for_a_batch() {
        let mut datagram = segment(1, 64, 0);
        datagram[20] ^= 1;
        assert_eq!(judge(&net(0), &datagram), Verdict::WrongIcrc);
        assert_eq!(segment_size(&net(0), &datagram), None);
        assert_eq!(segment_size(&net(0), &[]), None);
    }
}
