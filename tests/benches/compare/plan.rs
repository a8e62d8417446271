//! Selects the lines of a run: those that the promises need, or all.

use crate::line::{BUSY, Line, Link, Network, THREADS, Unit, Verbs, Work};
use crate::transfer::Transfer;

/// Program of perftest; its table also has the bandwidths of other transports.
const WRITE_BW: &str = "ib_write_bw";
/// Program of perftest; its table also has the latencies of other transports.
const WRITE_LAT: &str = "ib_write_lat";
/// Message sizes of bandwidth lines, in bytes.
const STREAM_SIZES: [usize; 9] = [8, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20];
/// Message sizes of latency lines, in bytes.
const LATENCY_SIZES: [usize; 6] = [8, 64, 512, 4 << 10, 16 << 10, 64 << 10];
const MB: usize = 1 << 20;

/// Returns a line of a program over roxe.
pub(crate) fn verbs(size: usize, verbs: Verbs) -> Line {
    let unit = match verbs.is_latency() {
        true => Unit::Microseconds,
        false if size <= 64 || verbs.tool == THREADS => Unit::MillionsPerSecond,
        false => Unit::GigabytesPerSecond,
    };
    Line { group: verbs.tool, size, unit, work: Work::Verbs(verbs), network: Network::Loopback }
}

/// Returns a line of another transport for the table of `ib_write_bw`.
fn stream(size: usize, work: Work) -> Line {
    Line { group: WRITE_BW, size, unit: Unit::GigabytesPerSecond, work, network: Network::Loopback }
}

/// Returns a line of another transport with small messages for the table of `ib_write_bw`.
fn rate(size: usize, work: Work) -> Line {
    Line { unit: Unit::MillionsPerSecond, ..stream(size, work) }
}

/// Returns a line of another transport for the table of `ib_write_lat`.
fn latency(size: usize, work: Work) -> Line {
    Line { group: WRITE_LAT, size, unit: Unit::Microseconds, work, network: Network::Loopback }
}

/// Returns the lines that the promises of the README need.
pub(crate) fn quick() -> Vec<Line> {
    let mut lines = vec![
        stream(MB, Work::Yardstick(4096)),
        stream(MB, Work::Ucx("tag_bw", "tcp")),
        stream(MB, Work::Ucx("tag_bw", "posix,cma")),
        rate(64, Work::Yardstick(4096)),
        rate(64, Work::RingStream),
        latency(8, Work::UdpLatency(1)),
        latency(8, Work::UdpLatency(2)),
        latency(8, Work::RingLatency),
        latency(8, Work::Ucx("tag_lat", "tcp")),
        latency(8, Work::Ucx("tag_lat", "posix,cma")),
    ];
    for link in [Link::Udp, Link::UdpStock] {
        lines.extend([
            verbs(MB, Verbs::new(WRITE_BW, link)),
            verbs(64 << 10, Verbs::new(WRITE_BW, link)),
            verbs(MB, Verbs::new(WRITE_BW, link).mtu(1024)),
            verbs(64, Verbs::new(WRITE_BW, link)),
            verbs(8, Verbs::new(WRITE_LAT, link)),
        ]);
    }
    lines.extend([
        verbs(MB, Verbs::new(WRITE_BW, Link::Shm)),
        verbs(4 << 10, Verbs::new(WRITE_BW, Link::Shm)),
        verbs(64, Verbs::new(WRITE_BW, Link::Shm)),
        verbs(8, Verbs::new(WRITE_LAT, Link::Shm)),
    ]);
    for link in [Link::Udp, Link::Shm] {
        lines.extend([
            verbs(64 << 10, Verbs::new("ib_send_bw", link).events()),
            verbs(8, Verbs::new("ib_send_lat", link).events()),
        ]);
    }
    lines
}

/// Returns all lines.
pub(crate) fn whole() -> Vec<Line> {
    let mut lines = quick();
    for size in STREAM_SIZES {
        for tool in [WRITE_BW, "ib_read_bw", "ib_send_bw"] {
            lines.extend([Link::Udp, Link::Shm].map(|link| verbs(size, Verbs::new(tool, link))));
        }
    }
    for size in LATENCY_SIZES {
        for tool in [WRITE_LAT, "ib_read_lat", "ib_send_lat"] {
            lines.extend([Link::Udp, Link::Shm].map(|link| verbs(size, Verbs::new(tool, link))));
        }
    }
    lines.extend([Link::Udp, Link::Shm].into_iter().flat_map(variations));
    lines.extend(STREAM_SIZES[3..].iter().map(|&size| stream(size, Work::Yardstick(4096))));
    lines.extend(others());
    let mut all: Vec<Line> = Vec::new();
    for line in lines {
        if !all.contains(&line) {
            all.push(line);
        }
    }
    all.sort_by_key(|line| (line.group, line.size));
    all
}

/// Networks between two namespaces, with the largest path MTU that fits.
pub(crate) const NETWORKS: [(Network, u32); 5] = [
    (Network::Veth { mtu: 1500, v6: false }, 1024),
    (Network::Veth { mtu: 9000, v6: false }, 4096),
    (Network::Veth { mtu: 9000, v6: true }, 4096),
    (Network::Bridge { mtu: 1500 }, 1024),
    (Network::Bridge { mtu: 9000 }, 4096),
];

/// Returns the lines between two network namespaces.
pub(crate) fn veth() -> Vec<Line> {
    let lines = NETWORKS.into_iter().flat_map(|(network, mtu)| {
        let new = |tool| Verbs::new(tool, Link::Udp).mtu(mtu);
        let lines = [
            stream(MB, Work::Iperf),
            stream(MB, Work::Ucx("tag_bw", "tcp")),
            stream(64 << 10, Work::Ucx("tag_bw", "tcp")),
            stream(MB, Work::Yardstick(mtu as usize)),
            stream(64 << 10, Work::Yardstick(mtu as usize)),
            rate(64, Work::Yardstick(mtu as usize)),
            latency(8, Work::UdpLatency(1)),
            latency(8, Work::UdpLatency(2)),
            latency(8, Work::Ucx("tag_lat", "tcp")),
            verbs(MB, new(WRITE_BW)),
            verbs(64 << 10, new(WRITE_BW)),
            verbs(64 << 10, new(WRITE_BW).processes(2)),
            verbs(64 << 10, new(WRITE_BW).processes(4)),
            verbs(64, new(WRITE_BW)),
            verbs(8, new(WRITE_LAT)),
            verbs(8, new("ib_send_lat").events()),
        ];
        lines.map(|line| Line { network, ..line })
    });
    lines.collect()
}

/// Returns roxe's lines among these, each with the same line for the other build.
pub(crate) fn against(lines: Vec<Line>) -> Vec<Line> {
    let both = lines.into_iter().filter_map(|line| match &line.work {
        Work::Verbs(verbs) => {
            let before = Line { work: Work::Verbs(verbs.clone().before()), ..line.clone() };
            Some([before, line])
        }
        _ => None,
    });
    both.flatten().collect()
}

/// Returns lines with more queue pairs, processes, threads and connections, another MTU, and
/// events.
fn variations(link: Link) -> Vec<Line> {
    let new = |tool| Verbs::new(tool, link);
    let mut lines = Vec::new();
    for size in [64, 4 << 10, 64 << 10, MB] {
        lines.extend([4, 16].map(|qps| verbs(size, new(WRITE_BW).qps(qps))));
        lines.extend([2, 4].map(|processes| verbs(size, new(WRITE_BW).processes(processes))));
        lines.push(verbs(size, new(WRITE_BW).mtu(1024)));
        lines.push(verbs(size, new("ib_send_bw").events()));
    }
    lines.push(verbs(4 << 10, new("ib_send_lat").events()));
    for size in [64, 4 << 10] {
        lines.extend([1, 2, 4, 8].map(|threads| verbs(size, new(THREADS).qps(threads))));
    }
    lines.push(verbs(64, new(BUSY).qps(1000).events()));
    lines
}

/// Returns the lines of alternatives to roxe.
fn others() -> Vec<Line> {
    let mut lines = vec![
        stream(MB, Work::Yardstick(1024)),
        stream(4 << 10, Work::UdpStream(false)),
        stream(4 << 10, Work::UdpStream(true)),
        stream(MB, Work::TcpStream),
        stream(MB, Work::RingStream),
        latency(8, Work::TcpLatency),
        latency(8, Work::Yardstick(4096)),
    ];
    for (one_copy, written) in [(false, false), (true, false), (false, true), (true, true)] {
        let transfer = Work::Transfer(Transfer { one_copy, written });
        lines.extend([64 << 10, 256 << 10, MB, 4 * MB].map(|size| stream(size, transfer.clone())));
    }
    for tls in ["tcp", "posix,cma"] {
        lines.extend([4 << 10, 64 << 10].map(|size| stream(size, Work::Ucx("tag_bw", tls))));
        lines.extend([512, 4 << 10].map(|size| latency(size, Work::Ucx("tag_lat", tls))));
    }
    for link in [Link::Udp, Link::Shm] {
        lines.push(Line { group: "fio rdma", ..stream(64 << 10, Work::Fio(link)) });
    }
    for link in [None, Some(Link::Udp), Some(Link::Shm)] {
        lines.extend([64 << 10, MB].map(|size| Line { group: "MPI_Isend", ..stream(size, Work::Mpi(link)) }));
    }
    for (provider, endpoint) in [("tcp", "msg"), ("tcp;ofi_rxm", "rdm"), ("shm", "rdm"), ("udp;ofi_rxd", "rdm")] {
        lines.extend([64 << 10, MB].map(|size| stream(size, Work::Fabric(provider, endpoint))));
        lines.push(latency(8, Work::Fabric(provider, endpoint)));
    }
    lines
}
