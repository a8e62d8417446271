//! Connections between processes that share an address: requests find the process that listens,
//! ports have one owner, and whoever is left over after a death hears of it. Each test runs in a
//! network of its own.

use crate::common::ends::{saying, terms};
use crate::common::ids::{Party, here};
use crate::common::namespace;
use crate::common::peer::{MARK, Peer, ROLE, program};
use roxe_base::random;
use roxe_provider::cm::{
    Address, Channel, ConnParam, Event, EventData, EventKind, Id, PortSpace, RejReason, connections,
};
use roxe_provider::wire::cm::SidrStatus;
use roxe_provider::{Qp, Service};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const UP: &str = "ip link set lo up";

/// Runs the rest of a test in a network of its own; `name` is its name.
fn alone(name: &str, test: impl FnOnce()) {
    if namespace::is_inside() {
        test();
        namespace::done();
    } else {
        namespace::run(name, UP, "lo");
    }
}

/// The program of a peer: obeys one command per line until its input ends.
struct Puppet {
    party: Party,
    listener: Option<Arc<Id>>,
    /// The request or connection under way.
    request: Option<Event>,
    connection: Option<(Arc<Id>, Option<Arc<Qp>>)>,
    /// All ids and queue pairs there ever were.
    ids: Vec<Weak<Id>>,
    qps: Vec<Weak<Qp>>,
}

/// Not a test of its own: does something only where a test has started it.
#[test]
fn peer() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut puppet =
        Puppet { party: Party::open(), listener: None, request: None, connection: None, ids: vec![], qps: vec![] };
    for line in std::io::stdin().lines() {
        let answer = puppet.obey(&line.unwrap());
        println!("\n{MARK}{answer}");
    }
}

impl Puppet {
    fn obey(&mut self, line: &str) -> u64 {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).map_or(0, |word| word.parse::<u64>().unwrap());
        match words[0] {
            "listen" => self.listen(words[1].parse().unwrap()),
            "serve" => self.serve(number(1), number(2)),
            "request" => self.take_request(),
            "accept" => self.accept(),
            "connect" => self.connect(number(1) as u16),
            "ask" => self.ask(number(1) as u16),
            "response" => self.response(),
            "establish" => self.establish(),
            "disconnect" => self.disconnect(),
            "exit" => std::process::exit(0),
            "hear" => self.hear(),
            "cycle" => self.cycle(number(1) as u16, number(2)),
            "descriptors" => descriptors(),
            "left" => self.left(),
            "fork" => self.fork(),
            "serve_lookup" => self.serve_lookup(number(1)),
            "look_up" => self.look_up(number(1) as u16),
            "counter" => crate::common::counter(&self.party.node.context, words[1]),
            other => panic!("unknown command {other}"),
        }
    }

    /// 0, or the errno.
    fn listen(&mut self, address: SocketAddr) -> u64 {
        match self.party.listen(address, 64) {
            Ok(id) => self.listener = Some(id),
            Err(errno) => return errno as u64,
        }
        0
    }

    /// Accepts `count` connections one after the other, saying `name`, and sees each of them end.
    fn serve(&mut self, count: u64, name: u64) -> u64 {
        let mut open = Vec::new();
        let (mut begun, mut ended) = (0, 0);
        while ended < count {
            let event = self.party.event();
            match event.kind {
                EventKind::ConnectRequest => {
                    begun += 1;
                    let qp = self.party.attach(&event.id);
                    event.id.accept(&saying(&name.to_ne_bytes())).unwrap();
                    self.note(&event.id, &qp);
                    open.push((event.id, qp));
                }
                EventKind::Established => {}
                EventKind::Disconnected => {
                    ended += 1;
                    event.id.disconnect().unwrap();
                    event.id.destroy();
                    open.retain(|(id, _)| !Arc::ptr_eq(id, &event.id));
                }
                EventKind::TimewaitExit => {}
                other => panic!("{other:?}"),
            }
        }
        begun
    }

    /// Hears of a request and does not answer.
    fn take_request(&mut self) -> u64 {
        self.request = Some(self.party.expect(EventKind::ConnectRequest));
        0
    }

    fn accept(&mut self) -> u64 {
        let id = self.request.take().unwrap().id;
        let qp = self.party.attach(&id);
        id.accept(&saying(b"")).unwrap();
        self.connection = Some((id, Some(qp)));
        0
    }

    /// Connects, and returns what the server said.
    fn connect(&mut self, port: u16) -> u64 {
        let (id, qp) = self.party.asking(here(port));
        let event = self.party.expect(EventKind::Established);
        self.connection = Some((id, Some(qp)));
        u64::from_ne_bytes(*terms(&event).private_data.first_chunk().unwrap())
    }

    /// Asks for a connection whose queue pair it moves itself.
    fn ask(&mut self, port: u16) -> u64 {
        let id = self.party.resolved(here(port));
        id.connect(&saying(b"")).unwrap();
        self.connection = Some((id, None));
        0
    }

    fn response(&mut self) -> u64 {
        self.party.expect(EventKind::ConnectResponse);
        0
    }

    fn establish(&mut self) -> u64 {
        self.connection.as_ref().unwrap().0.establish().unwrap();
        0
    }

    fn disconnect(&mut self) -> u64 {
        let (id, _) = self.connection.as_ref().unwrap();
        id.disconnect().unwrap();
        let event = self.party.expect(EventKind::Disconnected);
        assert_eq!(event.status, 0);
        id.destroy();
        self.connection = None;
        0
    }

    fn note(&mut self, id: &Arc<Id>, qp: &Arc<Qp>) {
        self.ids.push(Arc::downgrade(id));
        self.qps.push(Arc::downgrade(qp));
    }

    /// Opens and closes `count` connections, one after the other.
    fn cycle(&mut self, port: u16, count: u64) -> u64 {
        for _ in 0..count {
            let (id, qp) = self.party.asking(here(port));
            self.note(&id, &qp);
            self.party.expect(EventKind::Established);
            id.disconnect().unwrap();
            self.party.expect(EventKind::Disconnected);
            id.destroy();
        }
        count
    }

    /// Lets a child connect, which goes on living, and returns its process id; 0 if it could not.
    fn fork(&mut self) -> u64 {
        let (mut heard, mut said) = std::io::pipe().unwrap();
        // SAFETY: the child uses only what the fork handlers promise to work, and never returns.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let worked = std::panic::catch_unwind(AssertUnwindSafe(|| self.connect_in_child()));
            said.write_all(&[u8::from(worked.is_ok())]).unwrap();
            // SAFETY: waits for the signal that ends this process, which the clock sends if a
            // failed test does not.
            unsafe {
                libc::alarm(60);
                loop {
                    libc::pause();
                }
            }
        }
        let mut worked = [0];
        heard.read_exact(&mut worked).unwrap();
        u64::from(worked[0]) * u64::from(pid.unsigned_abs())
    }

    /// The port of the parent is not the child's, nor are its requests.
    fn connect_in_child(&self) {
        let party = &self.party;
        assert_eq!(party.listen(here(7001), 1).err(), Some(libc::EADDRINUSE));
        let listener = party.listen(here(7002), 1).unwrap();
        let (active, _qp) = party.asking(here(7002));
        let passive = party.expect(EventKind::ConnectRequest).id;
        let _qp = party.attach(&passive);
        passive.accept(&saying(b"")).unwrap();
        let connected = [party.expect(EventKind::Established).id, party.expect(EventKind::Established).id];
        assert!(connected.iter().any(|id| Arc::ptr_eq(id, &active)));
        [active, passive, listener].iter().for_each(|id| id.destroy());
    }

    /// Answers `count` lookups of a datagram service at port 7001, all with one queue pair, whose
    /// number it returns.
    fn serve_lookup(&mut self, count: u64) -> u64 {
        let listener = Id::create(&self.party.channel, PortSpace::Udp, 0).unwrap();
        listener.bind(&Address::Ip(here(7001))).unwrap();
        listener.listen(8).unwrap();
        let qp = self.party.node.qp(Service::Ud);
        println!("\n{MARK}0");
        for _ in 0..count {
            let id = self.party.expect(EventKind::ConnectRequest).id;
            id.accept(&ConnParam { qp_num: qp.qpn().get(), ..saying(b"here") }).unwrap();
            id.destroy();
        }
        qp.qpn().get().into()
    }

    /// Looks a datagram service up.
    fn look_up(&mut self, port: u16) -> u64 {
        let id = Id::create(&self.party.channel, PortSpace::Udp, 0).unwrap();
        id.resolve_addr(None, &Address::Ip(here(port)), 2000).unwrap();
        self.party.expect(EventKind::AddrResolved);
        id.resolve_route(2000).unwrap();
        self.party.expect(EventKind::RouteResolved);
        id.connect(&saying(b"who")).unwrap();
        let event = self.party.event();
        id.destroy();
        match event.data {
            EventData::Ud(found) if event.kind == EventKind::Established => found.qp_num.into(),
            _ => heard(event.kind, event.status),
        }
    }

    /// What is left of ids, queue pairs and connections when those are over whose late packets are
    /// waited for.
    fn left(&mut self) -> u64 {
        let start = Instant::now();
        let device = self.party.node.context.device();
        while connections(device) > 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "{} connections are left", connections(device));
            std::thread::yield_now();
        }
        let ids = self.ids.iter().filter(|id| id.strong_count() > 0).count();
        (ids + self.qps.iter().filter(|qp| qp.strong_count() > 0).count()) as u64
    }

    /// The kind of the next event, and its status behind three digits.
    fn hear(&mut self) -> u64 {
        let event = self.party.event();
        event.kind as u64 * 1000 + u64::from(event.status.unsigned_abs())
    }
}

/// Open descriptors of this process.
fn descriptors() -> u64 {
    std::fs::read_dir("/proc/self/fd").unwrap().count() as u64
}

fn start() -> Peer {
    Peer::start("puppet", &[])
}

fn ask(peer: &mut Peer, line: &str) -> u64 {
    peer.ask(line)[0]
}

/// What [`Puppet::hear`] says.
fn heard(kind: EventKind, status: i32) -> u64 {
    kind as u64 * 1000 + status as u64
}

#[test]
fn a_request_finds_the_process_that_listens() {
    alone("a_request_finds_the_process_that_listens", || {
        let mut servers: Vec<_> = (0..3).map(|_| start()).collect();
        let mut clients: Vec<_> = (0..3).map(|_| start()).collect();
        for (n, server) in servers.iter_mut().enumerate() {
            assert_eq!(ask(server, &format!("listen 127.0.0.1:{}", 7001 + n)), 0);
            server.tell(&format!("serve 3 {n}"));
        }
        for client in &mut clients {
            for n in 0..3 {
                assert_eq!(ask(client, &format!("connect {}", 7001 + n)), n, "the one that listens there answers");
                assert_eq!(ask(client, "disconnect"), 0);
            }
        }
        assert!(servers.iter_mut().all(|server| server.hear() == "3"));
    });
}

#[test]
fn twenty_processes_connect_to_each_other() {
    const EACH: u64 = 10;
    alone("twenty_processes_connect_to_each_other", || {
        let mut servers: Vec<_> = (0..EACH).map(|_| start()).collect();
        let mut clients: Vec<_> = (0..EACH).map(|_| start()).collect();
        for (n, server) in (0..).zip(&mut servers) {
            let address = ["127.0.0.1", "0.0.0.0", "[::]"][n as usize % 3];
            assert_eq!(ask(server, &format!("listen {address}:{}", 7001 + n)), 0);
            server.tell(&format!("serve {EACH} {n}"));
        }
        for turn in 0..EACH {
            let to = |n: u64| (n + turn) % EACH;
            (0..).zip(&mut clients).for_each(|(n, client)| client.tell(&format!("connect {}", 7001 + to(n))));
            (0..).zip(&mut clients).for_each(|(n, client)| assert_eq!(client.hear(), to(n).to_string()));
            clients.iter_mut().for_each(|client| client.tell("disconnect"));
            clients.iter_mut().for_each(|client| assert_eq!(client.hear(), "0"));
        }
        assert!(servers.iter_mut().all(|server| server.hear() == EACH.to_string()));
    });
}

#[test]
fn a_lookup_finds_the_process_that_serves() {
    alone("a_lookup_finds_the_process_that_serves", || {
        let [mut server, mut other, mut client] = [start(), start(), start()];
        assert_eq!(ask(&mut other, "listen 127.0.0.1:7001"), 0, "another port space");
        assert_eq!(ask(&mut server, "serve_lookup 3"), 0);
        let found = [0; 3].map(|_| ask(&mut client, "look_up 7001"));
        let answered: u64 = server.hear().parse().unwrap();
        assert_eq!(found, [answered; 3]);
        let refused = heard(EventKind::Unreachable, SidrStatus::Unsupported.code().into());
        assert_eq!(ask(&mut client, "look_up 7009"), refused);
    });
}

#[test]
fn processes_that_stand_still_keep_nobody_from_connecting() {
    // Which of the sockets of an address gets a message is up to the system; so many make it one of
    // these.
    const MANY: usize = 30;
    let start = || Peer::start("puppet", &[("ROXE_LINK", "auto")]);
    alone("processes_that_stand_still_keep_nobody_from_connecting", || {
        let [mut server, mut client] = [start(), start()];
        assert_eq!(ask(&mut server, "listen 127.0.0.1:7001"), 0);
        let mut still: Vec<_> = (0..MANY).map(|_| start()).collect();
        for (n, peer) in still.iter_mut().enumerate() {
            assert_eq!(ask(peer, &format!("listen 127.0.0.1:{}", 7100 + n)), 0);
            peer.stop();
        }
        server.tell("serve 1 5");
        assert_eq!([ask(&mut client, "connect 7001"), ask(&mut client, "disconnect")], [5, 0]);
        assert_eq!(server.hear(), "1");
    });
}

#[test]
fn a_child_has_ports_of_its_own_and_leaves_its_parents_alone() {
    alone("a_child_has_ports_of_its_own_and_leaves_its_parents_alone", || {
        let [mut first, mut second, mut client] = [start(), start(), start()];
        assert_eq!(ask(&mut first, "listen 127.0.0.1:7001"), 0);
        let child = ask(&mut first, "fork");
        assert_ne!(child, 0, "the child could not connect");
        first.tell("serve 1 1");
        assert_eq!([ask(&mut client, "connect 7001"), ask(&mut client, "disconnect")], [1, 0]);
        assert_eq!(first.hear(), "1");
        kill(first);
        assert_eq!(ask(&mut second, "listen 127.0.0.1:7001"), 0, "a child does not hold the port of its parent");
        // SAFETY: a child of our child, which is still there: nobody else ends it.
        assert_eq!(unsafe { libc::kill(child as i32, libc::SIGKILL) }, 0);
    });
}

#[test]
fn nobody_listens() {
    alone("nobody_listens", || {
        let (mut one, mut other) = (start(), start());
        assert_eq!(ask(&mut other, "listen 127.0.0.1:7001"), 0);
        // Whichever of the two gets the request: it knows that there is nobody.
        for port in 8000..8010 {
            assert_eq!(ask(&mut one, &format!("ask {port}")), 0);
            let refused = heard(EventKind::Rejected, RejReason::InvalidServiceId.code().into());
            assert_eq!(ask(&mut one, "hear"), refused);
        }
    });
}

#[test]
fn a_port_has_one_owner_until_that_dies() {
    alone("a_port_has_one_owner_until_that_dies", || {
        let [mut first, mut second, mut client] = [start(), start(), start()];
        assert_eq!(ask(&mut first, "listen 127.0.0.1:7001"), 0);
        assert_eq!(ask(&mut second, "listen 127.0.0.1:7001"), libc::EADDRINUSE as u64);
        assert_eq!(ask(&mut second, "listen 0.0.0.0:7001"), libc::EADDRNOTAVAIL as u64);
        assert_eq!(ask(&mut second, "listen [::]:7001"), libc::EADDRNOTAVAIL as u64);
        first.tell("serve 1 1");
        assert_eq!([ask(&mut client, "connect 7001"), ask(&mut client, "disconnect")], [1, 0]);
        assert_eq!(first.hear(), "1");
        first.signal(libc::SIGKILL);
        drop(first);
        assert_eq!(ask(&mut second, "listen 0.0.0.0:7001"), 0);
        second.tell("serve 1 2");
        assert_eq!([ask(&mut client, "connect 7001"), ask(&mut client, "disconnect")], [2, 0]);
        assert_eq!(second.hear(), "1");
    });
}

/// A server and a client of it; the server has heard of its request.
fn asked() -> (Peer, Peer) {
    let (mut server, mut client) = (start(), start());
    assert_eq!(ask(&mut server, "listen 127.0.0.1:7001"), 0);
    assert_eq!([ask(&mut client, "ask 7001"), ask(&mut server, "request")], [0, 0]);
    (server, client)
}

/// The same, connected.
fn connected() -> (Peer, Peer) {
    let (mut server, mut client) = asked();
    assert_eq!([ask(&mut server, "accept"), ask(&mut client, "response")], [0, 0]);
    assert_eq!(ask(&mut client, "establish"), 0);
    assert_eq!(ask(&mut server, "hear"), heard(EventKind::Established, 0));
    (server, client)
}

/// Ends a process at once; nothing of it is left when this returns.
fn kill(peer: Peer) {
    peer.signal(libc::SIGKILL);
    drop(peer);
}

// What the peer of a dead process sends reaches somebody who does not know the id, and says so.
const UNKNOWN: RejReason = RejReason::InvalidCommId;

#[test]
fn a_server_dies_before_it_answers() {
    alone("a_server_dies_before_it_answers", || {
        let (server, mut client) = asked();
        kill(server);
        // The request is repeated, and nobody listens any more.
        let refused = heard(EventKind::Rejected, RejReason::InvalidServiceId.code().into());
        assert_eq!(ask(&mut client, "hear"), refused);
    });
}

#[test]
fn a_client_dies_before_it_is_answered() {
    alone("a_client_dies_before_it_is_answered", || {
        let (mut server, client) = asked();
        kill(client);
        assert_eq!(ask(&mut server, "accept"), 0);
        assert_eq!(ask(&mut server, "hear"), heard(EventKind::Rejected, UNKNOWN.code().into()));
    });
}

#[test]
fn a_client_dies_before_it_confirms() {
    alone("a_client_dies_before_it_confirms", || {
        let (mut server, mut client) = asked();
        assert_eq!([ask(&mut server, "accept"), ask(&mut client, "response")], [0, 0]);
        kill(client);
        assert_eq!(ask(&mut server, "hear"), heard(EventKind::Rejected, UNKNOWN.code().into()));
    });
}

#[test]
fn a_server_dies_before_it_is_confirmed() {
    alone("a_server_dies_before_it_is_confirmed", || {
        let (mut server, mut client) = asked();
        assert_eq!([ask(&mut server, "accept"), ask(&mut client, "response")], [0, 0]);
        kill(server);
        assert_eq!(ask(&mut client, "establish"), 0);
        assert_eq!(ask(&mut client, "hear"), heard(EventKind::Disconnected, 0));
    });
}

#[test]
fn the_survivor_of_a_connection_ends_it_alone() {
    alone("the_survivor_of_a_connection_ends_it_alone", || {
        let (server, mut client) = connected();
        kill(server);
        assert_eq!(ask(&mut client, "disconnect"), 0);
        let (mut server, client) = connected();
        kill(client);
        assert_eq!(ask(&mut server, "disconnect"), 0);
    });
}

#[test]
fn a_process_that_ends_takes_leave() {
    alone("a_process_that_ends_takes_leave", || {
        let (mut server, mut client) = asked();
        server.tell("exit");
        // Of one that died, nobody would know what it thought of the request.
        let refused = heard(EventKind::Rejected, RejReason::ConsumerDefined.code().into());
        assert_eq!(ask(&mut client, "hear"), refused);
    });
}

// clause: CM-PEER-GONE
#[test]
fn a_death_is_noticed_although_nobody_says_anything() {
    alone("a_death_is_noticed_although_nobody_says_anything", || {
        let over = heard(EventKind::Disconnected, 0);
        let (server, mut client) = connected();
        kill(server);
        assert_eq!(ask(&mut client, "hear"), over);
        let (mut server, client) = connected();
        kill(client);
        assert_eq!(ask(&mut server, "hear"), over);
    });
}

/// `ROXE_TEST_CONNECTIONS` in the environment: how many instead of a few.
#[test]
fn connections_leave_nothing_behind() {
    let count: u64 = std::env::var("ROXE_TEST_CONNECTIONS").map_or(2000, |count| count.parse().unwrap());
    alone("connections_leave_nothing_behind", || {
        let (mut server, mut client) = (start(), start());
        assert_eq!(ask(&mut server, "listen 127.0.0.1:7001"), 0);
        // The first one opens what stays open.
        let mut before = [0; 2];
        for count in [1, count] {
            server.tell(&format!("serve {count} 0"));
            assert_eq!(ask(&mut client, &format!("cycle 7001 {count}")), count);
            assert_eq!(server.hear(), count.to_string());
            assert_eq!([ask(&mut server, "left"), ask(&mut client, "left")], [0, 0]);
            let now = [ask(&mut server, "descriptors"), ask(&mut client, "descriptors")];
            assert!(before == [0; 2] || now == before, "descriptors: {before:?} before, {now:?} now");
            before = now;
        }
    });
}

#[test]
fn a_child_draws_other_numbers_than_its_parent_that_has_a_port_and_no_device() {
    assert!(program("binds_and_forks").env(ROLE, "binds").status().unwrap().success());
}

/// Not a test of its own: the child of a process that has bound a port at all addresses says which
/// number it draws next.
#[test]
fn binds_and_forks() {
    if std::env::var(ROLE).as_deref() != Ok("binds") {
        return;
    }
    let channel = Channel::create().unwrap();
    let id = Id::create(&channel, PortSpace::Tcp, 0).unwrap();
    id.bind(&Address::Ip(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))).unwrap();
    let (mut heard, mut said) = std::io::pipe().unwrap();
    // SAFETY: the child only draws, writes and ends.
    if unsafe { libc::fork() } == 0 {
        said.write_all(&random::number().unwrap().to_ne_bytes()).unwrap();
        // SAFETY: takes nothing.
        unsafe { libc::_exit(0) };
    }
    let mut drawn = [0; 8];
    heard.read_exact(&mut drawn).unwrap();
    assert_ne!(u64::from_ne_bytes(drawn), random::number().unwrap());
}
