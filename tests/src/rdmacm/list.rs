//! The list of the programs, with their options.

use super::judge::Says;
use super::{Carrier, Exchange, ORIGINAL, Ready};
use crate::matrix::Ip;

/// Size of a run: the processor of the guest is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// The full number of messages.
    Full,
    /// Fewer messages, for a slow guest.
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

/// The programs of librdmacm's own package and perftest with `-R`.
pub fn all(scale: Scale) -> Vec<Exchange> {
    let mut list = rpings(scale);
    list.extend(matoses(scale));
    list.extend(daddies(scale));
    list.push(time(scale));
    list.extend(keys());
    list.extend(endpoints());
    list.extend(perftests(scale));
    list
}

/// Returns an exchange of one server and one client, connected, over both IP versions.
fn pair(server: String, client: String, says: Says, packets: usize) -> Exchange {
    Exchange {
        server,
        client,
        servers: 1,
        clients: 1,
        one_by_one: false,
        port: None,
        ready: Ready::Listens,
        stays: false,
        carrier: Carrier::Reliable,
        says,
        packets: packets as u64,
        ips: &Ip::ALL,
        note: "",
    }
}

/// Server and client with the same options but for the address.
fn twins(tool: &str, args: &str, says: Says, packets: usize) -> Exchange {
    pair(format!("{tool} -b OWN {args}"), format!("{tool} -s SERVER {args}"), says, packets)
}

/// rping verifies each byte with `-V` and shows them with `-v`. A ping is a READ and a WRITE by the
/// server and two SENDs by each.
fn rpings(scale: Scale) -> Vec<Exchange> {
    let rping = |options: &str, count: usize| {
        let args = format!("-p PORT -V -v -C {count}{options}");
        let (server, client) = (format!("rping -s -a OWN {args}"), format!("rping -c -a SERVER {args}"));
        pair(server, client, Says::Pings(count), 3 * count)
    };
    let (long, short) = (scale.of(1000, 100), scale.of(100, 20));
    // Twenty times as many in all, and on a link with losses each lost packet costs rxe a second or
    // two.
    let each = scale.of(100, 5);
    let persistent = Exchange {
        server: "rping -s -P -a OWN -p PORT".to_owned(),
        clients: 20,
        one_by_one: true,
        stays: true,
        says: Says::PingsOfMany { pings: each, missed: 0 },
        note: ", 20 clients",
        ..rping("", each)
    };
    vec![rping("", long), rping(" -q", short), rping(" -S 60000", short), persistent]
}

/// ucmatose checks no data; it counts completions.
fn matoses(scale: Scale) -> Vec<Exchange> {
    const DONE: Says = Says::Words(&["data transfers complete", "test complete", "return status 0"]);
    const MIGRATED: Says = Says::Words(&["migrating to new event channel", "test complete", "return status 0"]);
    let (many, count) = (scale.of(16, 4), scale.of(10, 4));
    let matose = |options: &str, says| {
        let args = format!("-p PORT -c {many} -C {count}{options}");
        twins("ucmatose", &args, says, many * count)
    };
    let mut list = vec![
        matose("", DONE),
        matose(" -m", MIGRATED),
        matose(" -f ip", DONE),
        matose(" -f name", DONE),
        matose(" -P ib", DONE),
        matose(" -S 0", Says::Words(&["test complete", "return status 0"])),
        matose(" -S 100000 -t 0x20 -a 17", DONE),
    ];
    // Nothing but the answers to its requests.
    list[5].packets = 2 * many as u64;
    list
}

/// udaddy checks no data either.
fn daddies(scale: Scale) -> Vec<Exchange> {
    const DONE: Says = Says::Words(&["data transfers complete", "test complete", "return status 0"]);
    let (many, count) = (scale.of(16, 4), scale.of(10, 4));
    let daddy = |options: &str| {
        let args = format!("-c {many} -C {count}{options}");
        Exchange { carrier: Carrier::Datagrams, port: Some(7174), ..twins("udaddy", &args, DONE, many * count) }
    };
    // The option -p is a port space, not a port; the port space of IPoIB is for IP over InfiniBand.
    vec![daddy(""), daddy(" -S 1000"), daddy(" -f ip")]
}

/// Returns an exchange whose server never ends.
fn time(scale: Scale) -> Exchange {
    let many = scale.of(1000, 50);
    Exchange { stays: true, ..twins("cmtime", &format!("-p PORT -c {many}"), Says::Steps, 2 * many) }
}

/// Both wait for three seconds after they have joined, then each receiver waits for each message.
fn keys() -> Vec<Exchange> {
    const COUNT: usize = 10;
    const DONE: Says = Says::Words(&["joined dgid: ", "data transfers complete", "test complete", "return status 0"]);
    let key = |servers: usize, options: &str, sender: &str| Exchange {
        servers,
        note: if servers > 1 { ", 2 receivers" } else { "" },
        ready: Ready::Joined,
        carrier: Carrier::Groups,
        // The sender need not receive anything.
        ..pair(
            format!("mckey -m GROUP -b OWN -C {COUNT}{options}"),
            format!("mckey -m GROUP -b OWN -s -C {COUNT}{options}{sender}"),
            DONE,
            0,
        )
    };
    vec![key(1, "", ""), key(2, "", ""), key(2, " -c 3", ""), key(1, "", " -o")]
}

/// Programs that use synchronous ids and `rdma_create_ep`.
fn endpoints() -> Vec<Exchange> {
    const ENDED: Says = Says::Words(&[": start", ": end 0"]);
    let client = |tool: &str, options: &str| format!("{tool} -s SERVER -p PORT{options}");
    let x = |kind: &str| {
        let server = format!("rdma_xserver -p PORT -c {kind}");
        Exchange { ips: &[Ip::V4], ..pair(server, client("rdma_xclient", &format!(" -c {kind}")), ENDED, 2) }
    };
    vec![
        pair("rdma_server -s OWN -p PORT".to_owned(), client("rdma_client", ""), ENDED, 3),
        // Its server listens on 0.0.0.0, like the next two, and cannot be given another address.
        Exchange {
            ips: &[Ip::V4],
            note: ", any address",
            ..pair("rdma_server -p PORT".to_owned(), client("rdma_client", ""), ENDED, 3)
        },
        x("r"),
        x("x"),
    ]
}

/// The programs of rsockets; between roxe and rxe they check that roxe's protocol is that of
/// librdmacm. `-T v` verifies each byte.
pub fn sockets(scale: Scale) -> Vec<Exchange> {
    let many = scale.of(100, 10);
    let stream = |tool: &str, size: usize, options: &str| {
        // A megabyte is 250 packets and more, of which a link with losses loses some each time.
        let few = scale == Scale::Small && size >= 1_000_000;
        let (many, count) = if few { (2, 2) } else { (many, scale.of(10, 3)) };
        let args = format!("-p PORT -S {size} -C {many} -I {count} -T v{options}");
        twins(tool, &args, Says::Row("custom"), 4)
    };
    let mut list: Vec<Exchange> = ["", " -T b", " -T n", " -T a", " -T r", " -f ip", " -i 0", " -k 5"]
        .map(|options| stream("rstream", 4096, options))
        .into();
    list.extend([1, 64, 65_536, 1_000_000].map(|size| stream("rstream", size, "")));
    list.extend(["", " -T b", " -T n", " -T a"].map(|options| stream("riostream", 64, options)));
    list.push(stream("riostream", 4096, ""));
    let pong = |options: &str| {
        let args = format!("-p PORT{options}");
        let exchange = twins("udpong", &format!("{args} -C {many} -S 64"), Says::Row("_"), 4);
        Exchange { server: format!("udpong -b OWN {args}"), stays: true, carrier: Carrier::Datagrams, ..exchange }
    };
    list.extend(["", " -T e", " -T a"].map(pong));
    let copy = (format!("rcopy {ORIGINAL} SERVER:COPY -p PORT"), Says::Words(&["transferring", "done"]));
    list.push(Exchange { stays: true, ips: &[Ip::V4], ..pair("rcopy -p PORT".to_owned(), copy.0, copy.1, 4) });
    list
}

/// Every program of perftest on every service it knows. Those that librdmacm or perftest cannot do
/// say so themselves.
fn perftests(scale: Scale) -> Vec<Exchange> {
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
    // Connected to say all there is to say, with queue pairs that are not.
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
    let carrier = if service == "UD" { Carrier::Datagrams } else { Carrier::Reliable };
    let says = match tool {
        "ib_read_lat" | "ib_atomic_lat" => Says::ClientFigures(iterations),
        _ => Says::Figures(iterations),
    };
    let exchange = pair(line.clone(), format!("{line} SERVER"), says, 4);
    Exchange { carrier, ips: &[Ip::V4], ..exchange }
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
