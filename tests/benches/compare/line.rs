//! A line of the benchmark: one figure, measured again in every round.

use crate::transfer::Transfer;
use std::fmt;

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// 10^9 bytes of messages per second; more is better.
    GigabytesPerSecond,
    /// Microseconds one way; less is better.
    Microseconds,
    /// Million messages per second; more is better.
    MillionsPerSecond,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GigabytesPerSecond => "GB/s",
            Self::Microseconds => "us",
            Self::MillionsPerSecond => "M/s",
        })
    }
}

/// Link that carries roxe's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// UDP with a receive buffer of 4 MiB.
    Udp,
    /// UDP with the receive buffer that most systems allow, 212,992 bytes.
    UdpStock,
    /// Rings in shared memory.
    Shm,
}

impl Link {
    /// Returns environment variables that select the link, and make programs print their counters.
    pub(crate) fn envs(self) -> Vec<(String, String)> {
        let words: &[(&str, &str)] = match self {
            Self::Udp => &[("ROXE_LINK", "udp"), ("ROXE_RCVBUF", "4194304")],
            Self::UdpStock => &[("ROXE_LINK", "udp"), ("ROXE_RCVBUF", "212992")],
            Self::Shm => &[("ROXE_LINK", "auto")],
        };
        let stats = [("ROXE_STATS", "on")];
        words.iter().chain(&stats).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Udp => "roxe udp",
            Self::UdpStock => "roxe udp, stock buffer",
            Self::Shm => "roxe shm",
        })
    }
}

/// Program in `tests/clients/rates` with many connections, a few of them busy, whose server sleeps.
pub(crate) const BUSY: &str = "busy_connections";
/// Program in `tests/clients/rates` whose threads stream WRITEs over a queue pair each.
pub(crate) const THREADS: &str = "write_threads";

/// A program of perftest, [`BUSY`] or [`THREADS`], with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verbs {
    /// Name; those that end with "_lat" measure latency.
    pub(crate) tool: &'static str,
    pub(crate) mtu: u32,
    pub(crate) qps: u32,
    /// True if it sleeps until a completion event.
    pub(crate) events: bool,
    /// Number of processes on each side, each with `qps` queue pairs; their rates are added.
    pub(crate) processes: u32,
    pub(crate) link: Link,
    /// True if the other build runs it (`--against`).
    pub(crate) before: bool,
}

impl Verbs {
    /// Creates a run with one queue pair and MTU 4096, which polls.
    pub(crate) const fn new(tool: &'static str, link: Link) -> Self {
        Self { tool, mtu: 4096, qps: 1, events: false, processes: 1, link, before: false }
    }

    pub(crate) const fn mtu(self, mtu: u32) -> Self {
        Self { mtu, ..self }
    }

    pub(crate) const fn qps(self, qps: u32) -> Self {
        Self { qps, ..self }
    }

    pub(crate) const fn events(self) -> Self {
        Self { events: true, ..self }
    }

    pub(crate) const fn processes(self, processes: u32) -> Self {
        Self { processes, ..self }
    }

    pub(crate) const fn before(self) -> Self {
        Self { before: true, ..self }
    }

    /// Returns true if the program is in `tests/clients/rates`, not in perftest.
    pub(crate) fn is_own(&self) -> bool {
        [BUSY, THREADS].contains(&self.tool)
    }

    /// Returns true if it measures latency.
    pub(crate) fn is_latency(&self) -> bool {
        self.tool.ends_with("_lat")
    }
}

impl fmt::Display for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.link)?;
        if self.mtu != 4096 {
            write!(f, ", MTU {}", self.mtu)?;
        }
        match self.qps {
            threads if self.tool == THREADS => write!(f, ", {threads} threads")?,
            1 => {}
            qps => write!(f, ", {qps} QPs")?,
        }
        if self.events {
            write!(f, ", events")?;
        }
        if self.processes != 1 {
            write!(f, ", {} processes", self.processes)?;
        }
        if self.before { f.write_str(", before") } else { Ok(()) }
    }
}

/// The program or loop that a line measures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// perftest over roxe.
    Verbs(Verbs),
    /// perftest over the kernel's rxe in a guest, which ignores the link.
    Rxe(Verbs),
    /// `ucx_perftest -t TEST` over these transports.
    Ucx(&'static str, &'static str),
    /// OpenMPI through UCX, over roxe or over shared memory of UCX's own.
    Mpi(Option<Link>),
    /// `fio` with its engine `rdma`.
    Fio(Link),
    /// `iperf3`, one TCP connection.
    Iperf,
    /// `fi_pingpong` with this provider and type of endpoint.
    Fabric(&'static str, &'static str),
    /// RoCE-like WRITE over UDP with this path MTU (`yardstick.rs`).
    Yardstick(usize),
    /// Datagrams one way, with or without segmentation offload.
    UdpStream(bool),
    /// Round trips with this number of datagrams in each direction: two correspond to a WRITE and
    /// an acknowledgement.
    UdpLatency(usize),
    /// A TCP connection one way.
    TcpStream,
    /// A TCP connection there and back.
    TcpLatency,
    /// A ring in shared memory one way.
    RingStream,
    /// A ring in shared memory there and back.
    RingLatency,
    /// Messages from the memory of another process.
    Transfer(Transfer),
}

impl Work {
    /// Returns the number of program pairs that send a fixed number of messages; `None` if they run
    /// for a fixed time.
    pub(crate) const fn counting_pairs(&self) -> Option<u64> {
        match self {
            Self::Verbs(verbs) => Some(verbs.processes as u64),
            Self::Ucx(..) | Self::Iperf | Self::Fabric(..) => Some(1),
            _ => None,
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verbs(verbs) => verbs.fmt(f),
            Self::Rxe(_) => f.write_str("rxe"),
            Self::Ucx(_, tls) => write!(f, "UCX {tls}"),
            Self::Mpi(None) => f.write_str("UCX posix"),
            Self::Mpi(Some(link)) | Self::Fio(link) => link.fmt(f),
            Self::Iperf => f.write_str("iperf3 TCP"),
            Self::Fabric(provider, _) => write!(f, "libfabric {provider}"),
            Self::Yardstick(4096) => f.write_str("yardstick"),
            Self::Yardstick(mtu) => write!(f, "yardstick, MTU {mtu}"),
            Self::UdpStream(false) => f.write_str("raw UDP, a call each"),
            Self::UdpStream(true) => f.write_str("raw UDP, GSO and GRO"),
            Self::UdpLatency(1) => f.write_str("raw UDP"),
            Self::UdpLatency(count) => write!(f, "raw UDP, {count} datagrams each"),
            Self::TcpStream | Self::TcpLatency => f.write_str("TCP"),
            Self::RingStream | Self::RingLatency => f.write_str("shared ring"),
            Self::Transfer(Transfer { one_copy, written }) => {
                f.write_str(if *one_copy { "process_vm_readv" } else { "shared ring" })?;
                f.write_str(if *written { ", new data" } else { ", same data" })
            }
        }
    }
}

/// A figure of the benchmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Table of the line: the name of a program of perftest, or of the program that runs.
    pub(crate) group: &'static str,
    /// Message size in bytes.
    pub(crate) size: usize,
    pub(crate) unit: Unit,
    pub(crate) work: Work,
    pub(crate) network: Network,
}

impl Line {
    /// Returns the name of the work and of its network.
    pub(crate) fn label(&self) -> String {
        format!("{}{}", self.work, self.network)
    }
}

/// Network between the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// Two processes, over the loopback interface.
    Loopback,
    /// Two network namespaces joined by a veth pair, like containers.
    Veth {
        /// Bytes of an IP packet.
        mtu: u32,
        /// True for IPv6.
        v6: bool,
    },
    /// Two network namespaces with a veth pair each to a bridge in a third one.
    Bridge {
        /// Bytes of an IP packet.
        mtu: u32,
    },
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => Ok(()),
            Self::Veth { mtu, v6 } => write!(f, ", veth {mtu}{}", if *v6 { ", IPv6" } else { "" }),
            Self::Bridge { mtu } => write!(f, ", bridge {mtu}"),
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.group, human(self.size), self.label())
    }
}

/// Formats a size as "64 B", "64 KB" or "8 MB".
pub(crate) fn human(size: usize) -> String {
    match size {
        0..1024 => format!("{size} B"),
        1024..1_048_576 => format!("{} KB", size >> 10),
        _ => format!("{} MB", size >> 20),
    }
}
