//! Checks the promises: ratios of figures of one run.

use crate::line::{Line, Link, Network, Unit, Verbs, Work};
use crate::plan;
use crate::rounds::Measured;

const WRITE_BW: &str = "ib_write_bw";
const WRITE_LAT: &str = "ib_write_lat";
const MB: usize = 1 << 20;
/// Part of the rate with a buffer of 4 MiB that the stock buffer must reach.
const STOCK: f64 = 0.8;
/// Share by which a build may be slower than the other one.
const SLOWER: f64 = 0.03;

/// A promise of the benchmark.
pub(crate) struct Promise {
    pub(crate) name: String,
    /// Promised figure; NaN if it depends on a figure that could not be measured.
    pub(crate) target: f64,
    /// Measured figure, if there is one.
    pub(crate) reached: Option<f64>,
    /// True if less is better.
    less: bool,
    /// True if one of its figures has only disturbed runs.
    pub(crate) disturbed: bool,
}

/// A figure, and true if it has only disturbed runs.
type Found = Option<(f64, bool)>;

impl Promise {
    /// Returns true if the promise is kept.
    pub(crate) fn holds(&self) -> bool {
        self.reached.is_some_and(|reached| if self.less { reached <= self.target } else { reached >= self.target })
    }
}

/// The figures of a run.
struct Figures<'a>(&'a [Measured]);

impl Figures<'_> {
    fn find(&self, group: &str, size: usize, work: &Work) -> Found {
        self.find_at(Network::Loopback, group, size, work)
    }

    fn find_at(&self, network: Network, group: &str, size: usize, work: &Work) -> Found {
        let fits =
            |line: &Line| line.network == network && line.group == group && line.size == size && line.work == *work;
        let measured = self.0.iter().find(|m| fits(&m.line)).filter(|m| m.failures.is_empty())?;
        Some((measured.counting().median()?, measured.is_disturbed()))
    }

    fn verbs(&self, size: usize, verbs: Verbs) -> Found {
        self.find(verbs.tool, size, &Work::Verbs(verbs))
    }

    fn at_least(&self, name: &str, reached: Found, part: f64, reference: Found) -> Promise {
        self.promise(name, reached, part, reference, false)
    }

    fn at_most(&self, name: &str, reached: Found, part: f64, reference: Found) -> Promise {
        self.promise(name, reached, part, reference, true)
    }

    fn promise(&self, name: &str, reached: Found, part: f64, reference: Found, less: bool) -> Promise {
        let disturbed = [reached, reference].into_iter().flatten().any(|(_, disturbed)| disturbed);
        let target = reference.map_or(f64::NAN, |(figure, _)| figure * part);
        Promise { name: name.to_owned(), target, reached: reached.map(|(figure, _)| figure), less, disturbed }
    }
}

/// Returns the promises about loopback, without those that have no figures at all.
pub(crate) fn judge(all: &[Measured]) -> Vec<Promise> {
    let figures = Figures(all);
    let mut promises = udp(&figures);
    promises.extend(stock(&figures));
    promises.extend(shm(&figures));
    promises.retain(|promise| promise.reached.is_some() || !promise.target.is_nan());
    promises
}

fn udp(figures: &Figures<'_>) -> Vec<Promise> {
    let roxe = |size, verbs| figures.verbs(size, verbs);
    let (bw, lat) = (Verbs::new(WRITE_BW, Link::Udp), Verbs::new(WRITE_LAT, Link::Udp));
    let yardstick = figures.find(WRITE_BW, MB, &Work::Yardstick(4096));
    let [raw, raw_with_ack] = [1, 2].map(|datagrams| figures.find(WRITE_LAT, 8, &Work::UdpLatency(datagrams)));
    let (ucx_bw, ucx_lat) = (Work::Ucx("tag_bw", "tcp"), Work::Ucx("tag_lat", "tcp"));
    vec![
        figures.at_least("udp: write 1 MB >= 0.75 yardstick, GB/s", roxe(MB, bw.clone()), 0.75, yardstick),
        figures.at_least(
            "udp: write 1 MB >= UCX tcp, GB/s",
            roxe(MB, bw.clone()),
            1.0,
            figures.find(WRITE_BW, MB, &ucx_bw),
        ),
        figures.at_least("udp: write 64 KB >= 0.6 yardstick of 1 MB, GB/s", roxe(64 << 10, bw.clone()), 0.6, yardstick),
        figures.at_least(
            "udp: write 1 MB, MTU 1024 >= 0.8 MTU 4096, GB/s",
            roxe(MB, bw.clone().mtu(1024)),
            0.8,
            roxe(MB, bw.clone()),
        ),
        figures.at_most("udp: write latency 8 B <= 1.4 raw UDP, us", roxe(8, lat.clone()), 1.4, raw),
        figures.at_most(
            "udp: write latency 8 B <= 1.3 raw UDP with as many datagrams, us",
            roxe(8, lat.clone()),
            1.3,
            raw_with_ack,
        ),
        figures.at_most(
            "udp: write latency 8 B <= UCX tcp, us",
            roxe(8, lat),
            1.0,
            figures.find(WRITE_LAT, 8, &ucx_lat),
        ),
        figures.at_least("udp: messages of 64 B, M/s", roxe(64, bw), 1.0, Some((0.5, false))),
    ]
}

fn stock(figures: &Figures<'_>) -> Vec<Promise> {
    let pair =
        |size, tool, mtu| [Link::UdpStock, Link::Udp].map(|link| figures.verbs(size, Verbs::new(tool, link).mtu(mtu)));
    let at_least = |name: &str, [stock, full]: [Found; 2]| figures.at_least(name, stock, STOCK, full);
    let [stock, full] = pair(8, WRITE_LAT, 4096);
    vec![
        at_least("stock buffer: write 1 MB >= 0.8 of 4 MiB, GB/s", pair(MB, WRITE_BW, 4096)),
        at_least("stock buffer: write 64 KB >= 0.8 of 4 MiB, GB/s", pair(64 << 10, WRITE_BW, 4096)),
        at_least("stock buffer: write 1 MB, MTU 1024 >= 0.8 of 4 MiB, GB/s", pair(MB, WRITE_BW, 1024)),
        at_least("stock buffer: messages of 64 B >= 0.8 of 4 MiB, M/s", pair(64, WRITE_BW, 4096)),
        figures.at_most("stock buffer: write latency 8 B <= 1.25 of 4 MiB, us", stock, 1.0 / STOCK, full),
    ]
}

fn shm(figures: &Figures<'_>) -> Vec<Promise> {
    let roxe = |size, tool| figures.verbs(size, Verbs::new(tool, Link::Shm));
    let event = |size, tool, link| figures.verbs(size, Verbs::new(tool, link).events());
    let ucx = figures.find(WRITE_BW, MB, &Work::Ucx("tag_bw", "posix,cma"));
    let given = |value, reached: Found| reached.map(|_| (value, false));
    let (mb, small, rate, lat) = (roxe(MB, WRITE_BW), roxe(4 << 10, WRITE_BW), roxe(64, WRITE_BW), roxe(8, WRITE_LAT));
    let (send_bw, send_lat) = ("ib_send_bw", "ib_send_lat");
    let events = |size, tool| [Link::Shm, Link::Udp].map(|link| event(size, tool, link));
    let ([shm_bw, udp_bw], [shm_lat, udp_lat]) = (events(64 << 10, send_bw), events(8, send_lat));
    let promises = vec![
        figures.at_least("shm: write 1 MB, GB/s", mb, 1.0, given(10.0, mb)),
        figures.at_least("shm: write 1 MB >= UCX posix,cma, GB/s", mb, 1.0, ucx),
        figures.at_least("shm: write 4 KB, GB/s", small, 1.0, given(3.0, small)),
        figures.at_most("shm: write latency 8 B, us", lat, 1.0, given(0.8, lat)),
        figures.at_least("shm: messages of 64 B, M/s", rate, 1.0, given(3.0, rate)),
        figures.at_least("shm: events, send 64 KB >= udp, GB/s", shm_bw, 1.0, udp_bw),
        figures.at_most("shm: events, send latency 8 B <= udp, us", shm_lat, 1.0, udp_lat),
    ];
    promises.into_iter().filter(|promise| promise.reached.is_some()).collect()
}

/// Returns the promises about two namespaces.
pub(crate) fn over_veth(all: &[Measured]) -> Vec<Promise> {
    let figures = Figures(all);
    let promises = plan::NETWORKS.into_iter().flat_map(|(network, mtu)| {
        let roxe = |tool, size| {
            let work = Work::Verbs(Verbs::new(tool, Link::Udp).mtu(mtu));
            figures.find_at(network, tool, size, &work)
        };
        let tcp = figures.find_at(network, WRITE_BW, MB, &Work::Iperf);
        let ucx = figures.find_at(network, WRITE_LAT, 8, &Work::Ucx("tag_lat", "tcp"));
        let name = |what: &str| format!("{what}{network}");
        [
            figures.at_least(&name("write 1 MB >= 1.2 iperf3, GB/s"), roxe(WRITE_BW, MB), 1.2, tcp),
            figures.at_least(&name("write 64 KB >= 0.9 iperf3, GB/s"), roxe(WRITE_BW, 64 << 10), 0.9, tcp),
            figures.at_most(&name("write latency 8 B <= UCX tcp, us"), roxe(WRITE_LAT, 8), 1.0, ucx),
        ]
    });
    promises.filter(|promise| promise.reached.is_some()).collect()
}

/// Returns a promise for each line of this build, compared with the other build.
pub(crate) fn against(all: &[Measured]) -> Vec<Promise> {
    let figures = Figures(all);
    let promises = all.iter().filter_map(|measured| {
        let Line { group, size, unit, work, network } = &measured.line;
        let Work::Verbs(verbs) = work else { return None };
        let find = |work: &Work| figures.find_at(*network, group, *size, work);
        let before = find(&Work::Verbs(verbs.clone().before()));
        let name = format!("{}, {unit}", measured.line);
        (!verbs.before).then(|| match unit {
            Unit::Microseconds => figures.at_most(&name, find(work), 1.0 + SLOWER, before),
            _ => figures.at_least(&name, find(work), 1.0 - SLOWER, before),
        })
    });
    promises.collect()
}

/// Returns the promises about roxe compared with the kernel's rxe in one guest.
pub(crate) fn against_rxe(all: &[Measured]) -> Vec<Promise> {
    let figures = Figures(all);
    let roxe_and_rxe =
        |size, verbs: Verbs| (figures.verbs(size, verbs.clone()), figures.find(verbs.tool, size, &Work::Rxe(verbs)));
    let mut promises = Vec::new();
    for tool in [WRITE_BW, "ib_send_bw", "ib_read_bw"] {
        for (link, part) in [(Link::Udp, 1.0), (Link::Shm, 3.0)] {
            let (roxe, _) = roxe_and_rxe(64 << 10, Verbs::new(tool, link));
            let (_, rxe) = roxe_and_rxe(64 << 10, Verbs::new(tool, Link::Udp));
            promises.push(figures.at_least(&format!("{link}: {tool} 64 KB >= {part} rxe, GB/s"), roxe, part, rxe));
        }
    }
    for tool in [WRITE_LAT, "ib_send_lat"] {
        for (link, part) in [(Link::Udp, 1.0), (Link::Shm, 1.0 / 3.0)] {
            let (roxe, _) = roxe_and_rxe(8, Verbs::new(tool, link));
            let (_, rxe) = roxe_and_rxe(8, Verbs::new(tool, Link::Udp));
            promises.push(figures.at_most(&format!("{link}: {tool} 8 B <= {part:.2} rxe, us"), roxe, part, rxe));
        }
    }
    promises.into_iter().filter(|promise| promise.reached.is_some()).collect()
}
