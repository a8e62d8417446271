//! The list of the programs, with their options.

use super::judge::Expected;
use super::{Exchange, ORIGINAL, Ready, Transport};
use crate::matrix::Ip;

/// Number of messages in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// All messages.
    Full,
    /// Fewer messages, for the guest's emulated processor.
    Small,
}

impl Scale {
    fn of(self, full: usize, small: usize) -> usize {
        match self {
            Self::Full => full,
            Self::Small => small,
        }
    }
}

/// Returns the programs of Debian's rdmacm-utils, and perftest with `-R`.
pub fn all(scale: Scale) -> Vec<Exchange> {
    let mut list = rping_runs(scale);
    list.extend(ucmatose_runs(scale));
    list.extend(udaddy_runs(scale));
    list.push(cmtime_run(scale));
    list.extend(mckey_runs());
    list.extend(endpoint_runs());
    list.extend(perftest_runs(scale));
    list
}

/// Returns an exchange of one server and one client over a reliable transport and both IP versions.
fn pair(server: String, client: String, expected: Expected, packets: usize) -> Exchange {
    Exchange {
        server,
        client,
        servers: 1,
        clients: 1,
        one_by_one: false,
        port: None,
        ready: Ready::Listens,
        stays: false,
        transport: Transport::Reliable,
        expected,
        packets: packets as u64,
        ips: &Ip::ALL,
        note: "",
    }
}

/// Returns an exchange whose server and client have the same options except the address.
fn same_options(tool: &str, args: &str, expected: Expected, packets: usize) -> Exchange {
    pair(format!("{tool} -b OWN {args}"), format!("{tool} -s SERVER {args}"), expected, packets)
}

/// rping verifies each byte with `-V` and prints the data with `-v`. For each ping the server posts
/// a READ and a WRITE, and both post two SENDs.
fn rping_runs(scale: Scale) -> Vec<Exchange> {
    let rping = |options: &str, count: usize| {
        let args = format!("-p PORT -V -v -C {count}{options}");
        let (server, client) = (format!("rping -s -a OWN {args}"), format!("rping -c -a SERVER {args}"));
        pair(server, client, Expected::Pings(count), 3 * count)
    };
    let (long, short) = (scale.of(1000, 100), scale.of(100, 20));
    // Few pings per client, because there are twenty clients, and each lost packet costs rxe a
    // second or two.
    let each = scale.of(100, 5);
    let persistent = Exchange {
        server: "rping -s -P -a OWN -p PORT".to_owned(),
        clients: 20,
        one_by_one: true,
        stays: true,
        expected: Expected::PingsOfMany { pings: each, missed: 0 },
        note: ", 20 clients",
        ..rping("", each)
    };
    vec![rping("", long), rping(" -q", short), rping(" -S 60000", short), persistent]
}

/// ucmatose counts completions and does not check data.
fn ucmatose_runs(scale: Scale) -> Vec<Exchange> {
    const DONE: Expected = Expected::Words(&["data transfers complete", "test complete", "return status 0"]);
    const MIGRATED: Expected = Expected::Words(&["migrating to new event channel", "test complete", "return status 0"]);
    let (connections, count) = (scale.of(16, 4), scale.of(10, 4));
    let ucmatose = |options: &str, expected| {
        let args = format!("-p PORT -c {connections} -C {count}{options}");
        same_options("ucmatose", &args, expected, connections * count)
    };
    let mut list = vec![
        ucmatose("", DONE),
        ucmatose(" -m", MIGRATED),
        ucmatose(" -f ip", DONE),
        ucmatose(" -f name", DONE),
        ucmatose(" -P ib", DONE),
        ucmatose(" -S 0", Expected::Words(&["test complete", "return status 0"])),
        ucmatose(" -S 100000 -t 0x20 -a 17", DONE),
    ];
    // With `-S 0` each end receives only the replies to its connection messages.
    list[5].packets = 2 * connections as u64;
    list
}

/// udaddy counts completions and does not check data.
fn udaddy_runs(scale: Scale) -> Vec<Exchange> {
    const DONE: Expected = Expected::Words(&["data transfers complete", "test complete", "return status 0"]);
    let (connections, count) = (scale.of(16, 4), scale.of(10, 4));
    let udaddy = |options: &str| {
        let args = format!("-c {connections} -C {count}{options}");
        Exchange {
            transport: Transport::Datagrams,
            port: Some(7174),
            ..same_options("udaddy", &args, DONE, connections * count)
        }
    };
    // The port is fixed, because udaddy's option -p sets the port space.
    vec![udaddy(""), udaddy(" -S 1000"), udaddy(" -f ip")]
}

/// cmtime's server never exits.
fn cmtime_run(scale: Scale) -> Exchange {
    let connections = scale.of(1000, 50);
    Exchange {
        stays: true,
        ..same_options("cmtime", &format!("-p PORT -c {connections}"), Expected::Steps, 2 * connections)
    }
}

/// mckey waits three seconds after it has joined; then each receiver waits for each message.
fn mckey_runs() -> Vec<Exchange> {
    const COUNT: usize = 10;
    const DONE: Expected =
        Expected::Words(&["joined dgid: ", "data transfers complete", "test complete", "return status 0"]);
    let mckey = |servers: usize, options: &str, sender: &str| Exchange {
        servers,
        note: if servers > 1 { ", 2 receivers" } else { "" },
        ready: Ready::Joined,
        transport: Transport::Multicast,
        // The sender need not receive anything.
        ..pair(
            format!("mckey -m GROUP -b OWN -C {COUNT}{options}"),
            format!("mckey -m GROUP -b OWN -s -C {COUNT}{options}{sender}"),
            DONE,
            0,
        )
    };
    vec![mckey(1, "", ""), mckey(2, "", ""), mckey(2, " -c 3", ""), mckey(1, "", " -o")]
}

/// Returns the programs that use synchronous ids and `rdma_create_ep`.
fn endpoint_runs() -> Vec<Exchange> {
    const ENDED: Expected = Expected::Words(&[": start", ": end 0"]);
    let client = |tool: &str, options: &str| format!("{tool} -s SERVER -p PORT{options}");
    let xclient = |kind: &str| {
        let server = format!("rdma_xserver -p PORT -c {kind}");
        Exchange { ips: &[Ip::V4], ..pair(server, client("rdma_xclient", &format!(" -c {kind}")), ENDED, 2) }
    };
    vec![
        pair("rdma_server -s OWN -p PORT".to_owned(), client("rdma_client", ""), ENDED, 3),
        // This server and the XRC servers listen on 0.0.0.0, so the clients connect over IPv4.
        Exchange {
            ips: &[Ip::V4],
            note: ", any address",
            ..pair("rdma_server -p PORT".to_owned(), client("rdma_client", ""), ENDED, 3)
        },
        xclient("r"),
        xclient("x"),
    ]
}

/// Returns the programs of rsockets. Between roxe and rxe they check that roxe's protocol is that
/// of librdmacm. `-T v` verifies each byte.
pub fn sockets(scale: Scale) -> Vec<Exchange> {
    let transfers = scale.of(100, 10);
    let stream = |tool: &str, size: usize, options: &str| {
        // A megabyte is 250 packets or more, so that a lossy link loses some of them every time.
        let is_large = scale == Scale::Small && size >= 1_000_000;
        let (transfers, iterations) = if is_large { (2, 2) } else { (transfers, scale.of(10, 3)) };
        let args = format!("-p PORT -S {size} -C {transfers} -I {iterations} -T v{options}");
        same_options(tool, &args, Expected::Row("custom"), 4)
    };
    let mut list: Vec<Exchange> = ["", " -T b", " -T n", " -T a", " -T r", " -f ip", " -i 0", " -k 5"]
        .map(|options| stream("rstream", 4096, options))
        .into();
    list.extend([1, 64, 65_536, 1_000_000].map(|size| stream("rstream", size, "")));
    list.extend(["", " -T b", " -T n", " -T a"].map(|options| stream("riostream", 64, options)));
    list.push(stream("riostream", 4096, ""));
    let udpong = |options: &str| {
        let args = format!("-p PORT{options}");
        let exchange = same_options("udpong", &format!("{args} -C {transfers} -S 64"), Expected::Row("_"), 4);
        Exchange { server: format!("udpong -b OWN {args}"), stays: true, transport: Transport::Datagrams, ..exchange }
    };
    list.extend(["", " -T e", " -T a"].map(udpong));
    let copy = (format!("rcopy {ORIGINAL} SERVER:COPY -p PORT"), Expected::Words(&["transferring", "done"]));
    list.push(Exchange { stays: true, ips: &[Ip::V4], ..pair("rcopy -p PORT".to_owned(), copy.0, copy.1, 4) });
    list
}

/// Returns every program of perftest on every service it supports. librdmacm and perftest refuse
/// some of these with a message, and the check is then skipped.
fn perftest_runs(scale: Scale) -> Vec<Exchange> {
    const TOOLS: [(&str, &[&str]); 8] = [
        ("ib_send_bw", &["RC", "UC", "UD", "XRC"]),
        ("ib_send_lat", &["RC", "UC", "UD", "XRC"]),
        ("ib_write_bw", &["RC", "UC", "XRC"]),
        ("ib_write_lat", &["RC", "UC", "XRC"]),
        ("ib_read_bw", &["RC", "XRC"]),
        ("ib_read_lat", &["RC", "XRC"]),
        ("ib_atomic_bw", &["RC", "XRC"]),
        ("ib_atomic_lat", &["RC", "XRC"]),
    ];
    let count = scale.of(1000, 50);
    let services = TOOLS.iter().flat_map(|(tool, services)| services.iter().map(move |service| (*tool, *service)));
    let mut list: Vec<Exchange> = services
        .map(|(tool, service)| {
            let size = if tool.contains("atomic") { "" } else { " -s 1024" };
            perftest(tool, &format!("-c {service}{size}"), service, count, count)
        })
        .collect();
    for (tool, options) in [
        ("ib_send_bw", "-c RC -s 65536 -q 4"),
        ("ib_send_bw", "-c RC -s 65536 -b"),
        ("ib_send_bw", "-c RC -s 1024 -e"),
        ("ib_send_bw", "-c RC -s 1024 -T 32"),
        ("ib_write_bw", "-c RC -s 65536 -q 4 -b"),
    ] {
        let pairs = if options.contains("-q 4") { 4 } else { 1 };
        list.push(perftest(tool, options, "RC", count, count * pairs));
    }
    // With `-z`, the programs only exchange parameters through librdmacm and connect the queue
    // pairs themselves.
    let exchange = perftest("ib_send_bw", "-c RC -s 1024", "RC", count, count);
    list.push(Exchange {
        server: exchange.server.replace(" -R ", " -z "),
        client: exchange.client.replace(" -R ", " -z "),
        ..exchange
    });
    list
}

/// perftest resolves the address of `-R` as IPv4 only.
fn perftest(tool: &str, options: &str, service: &str, count: usize, rows: usize) -> Exchange {
    let line = format!("{tool} -F -R {options} -n {count} -p PORT");
    let iterations = u32::try_from(rows).unwrap_or(u32::MAX);
    let transport = if service == "UD" { Transport::Datagrams } else { Transport::Reliable };
    let expected = match tool {
        "ib_read_lat" | "ib_atomic_lat" => Expected::ClientFigures(iterations),
        _ => Expected::Figures(iterations),
    };
    let exchange = pair(line.clone(), format!("{line} SERVER"), expected, 4);
    Exchange { transport, ips: &[Ip::V4], ..exchange }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchanges_include_every_program() {
        let list: Vec<String> = all(Scale::Full).iter().map(|e| format!("{} | {}", e.server, e.client)).collect();
        for wanted in [
            "rping -c -a SERVER -p PORT -V -v -C 1000",
            "rping -s -P ",
            "ucmatose -s ",
            "udaddy -s ",
            "cmtime -s SERVER -p PORT -c 1000",
            "mckey -m ",
            "rdma_client -s ",
            "rdma_xclient -s SERVER -p PORT -c r",
            "rdma_xclient -s SERVER -p PORT -c x",
            "ib_atomic_lat -F -R -c RC",
        ] {
            assert!(list.iter().any(|line| line.contains(wanted)), "{wanted}");
        }
    }

    #[test]
    fn exchange_names_are_unique() {
        let mut names: Vec<String> = all(Scale::Small).iter().map(ToString::to_string).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
