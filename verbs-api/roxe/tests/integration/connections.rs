//! Connection management of the Rust API over the loopback device, both ends in this process.

use roxe::cm::{
    CmEvent, CmEventKind, CmId, ConnParam, Connection, EventChannel, IdOption, Incoming, JoinFlags, Listener, Outgoing,
    Path, PortSpace, UdPeer,
};
use roxe::{
    Access, ArgumentError, AsyncEventKind, CompletionQueue, Context, Error, Gid, MemoryRegion, MigState, PeerError,
    ProtectionDomain, QpState, QueuePair, Service, WorkRequest,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn with_data(param: ConnParam, text: &[u8]) -> ConnParam {
    ConnParam { private_data: text.to_vec(), ..param }
}

/// Returns private data as received: `text`, padded with zeros to `len` bytes.
fn padded(text: &[u8], len: usize) -> Vec<u8> {
    let mut all = text.to_vec();
    all.resize(len, 0);
    all
}

fn errno<T>(result: Result<T, Error>) -> i32 {
    match result {
        Err(error) => error.refusal().expect("the error is a refusal").errno(),
        Ok(_) => panic!("not refused"),
    }
}

/// Returns a queue pair on `id`, with a new completion queue.
fn queue_pair(id: &CmId) -> QueuePair {
    let pd = id.context().unwrap().alloc_pd().unwrap();
    let cq = pd.context().create_cq(32).unwrap();
    pd.create_qp(&cq, &cq).build_on(id).unwrap()
}

/// Sends a message from one queue pair to the other.
fn send(from: &QueuePair, to: &QueuePair) {
    let inbox = to.pd().alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    to.post_recv(1, &[inbox.slice(..).unwrap()]).unwrap();
    from.post_send(&WorkRequest::send_inline(b"a message").signaled()).unwrap();
    from.send_cq().wait(TIMEOUT).unwrap().check().unwrap();
    assert_eq!(to.recv_cq().wait(TIMEOUT).unwrap().check().unwrap().byte_len(), 9);
    assert_eq!(inbox.to_vec(..9).unwrap(), b"a message");
}

/// Returns the client's and the server's end of a connection of the blocking types.
fn connected() -> (Connection, Connection) {
    let listener = Listener::bind(HERE).unwrap();
    let address = listener.local_addr();
    let server = std::thread::spawn(move || listener.accept().unwrap());
    let client = Connection::connect(address).unwrap();
    (client, server.join().unwrap())
}

#[test]
fn all_types_are_send_and_sync() {
    fn shared<T: Send + Sync>() {}
    shared::<(EventChannel, CmId, CmEvent, Connection, Listener, Incoming, Outgoing)>();
}

/// Makes SIGUSR1 interrupt system calls of this process without any other effect.
fn catch_signal() {
    extern "C" fn ignore(_: libc::c_int) {}
    // SAFETY: a complete sigaction, for which all zero is valid; its handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
}

#[test]
fn connect_continues_after_signals() {
    catch_signal();
    let listener = Listener::bind(HERE).unwrap();
    let (address, (sender, receiver)) = (listener.local_addr(), mpsc::channel());
    let client = std::thread::spawn(move || {
        // SAFETY: no condition.
        sender.send(unsafe { libc::pthread_self() }).unwrap();
        Connection::connect(address)
    });
    let thread = receiver.recv().unwrap();
    let incoming = listener.next_request().unwrap();
    for _ in 0..100 {
        // SAFETY: the thread exists until it is joined.
        assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
        // The next signal finds the thread waiting again.
        std::thread::sleep(Duration::from_millis(1));
    }
    let (qp, answer) = (queue_pair(incoming.id()), incoming.answer());
    let server = incoming.accept(qp, &answer).unwrap();
    send(client.join().unwrap().unwrap().qp(), server.qp());
}

#[test]
fn messages_pass_both_ways() {
    let (client, server) = connected();
    assert_eq!((client.qp().state(), server.qp().state()), (QpState::Rts, QpState::Rts));
    assert_eq!(client.id().peer_addr(), server.id().local_addr());
    assert_eq!(server.id().peer_addr(), client.id().local_addr());
    send(client.qp(), server.qp());
    send(server.qp(), client.qp());
}

#[test]
fn client_reads_and_writes_concurrently() {
    let (client, server) = connected();
    let region =
        server.qp().pd().alloc_mr(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
    let own = client.qp().pd().alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    let parts = [own.slice(..4).unwrap()];
    for request in [WorkRequest::write_inline(b"four", region.remote()), WorkRequest::read(&parts, region.remote())] {
        client.qp().post_send(&request.signaled()).unwrap();
        client.qp().send_cq().wait(TIMEOUT).unwrap().check().unwrap();
    }
    assert_eq!(own.to_vec(..4).unwrap(), b"four");
    let terms = client.qp().query();
    assert!(terms.max_rd_atomic >= 16 && terms.max_dest_rd_atomic >= 16, "{terms:?}");
}

#[test]
fn private_data_travels_both_ways() {
    let listener = Listener::bind(HERE).unwrap();
    let address = listener.local_addr();
    let server = std::thread::spawn(move || {
        let request = listener.next_request().unwrap();
        assert_eq!(request.private_data(), padded(b"the client", 56));
        assert_eq!((request.param().responder_resources, request.param().initiator_depth), (5, 3), "as seen from here");
        let (qp, answer) = (queue_pair(request.id()), with_data(request.answer(), b"the server"));
        request.accept(qp, &answer).unwrap()
    });
    let request = Outgoing::resolve(address).unwrap();
    let param = ConnParam { responder_resources: 3, initiator_depth: 5, ..ConnParam::default() };
    let qp = queue_pair(request.id());
    let client = request.connect(qp, &with_data(param, b"the client")).unwrap();
    let server = server.join().unwrap();
    assert_eq!(client.private_data(), padded(b"the server", 196));
    let (own, peers) = (client.qp().query(), server.qp().query());
    assert_eq!((own.max_rd_atomic, own.max_dest_rd_atomic), (5, 3));
    assert_eq!((peers.max_rd_atomic, peers.max_dest_rd_atomic), (3, 5));
}

#[test]
fn rejection_carries_private_data() {
    let listener = Listener::bind(HERE).unwrap();
    let address = listener.local_addr();
    let server = std::thread::spawn(move || {
        listener.next_request().unwrap().reject(b"no room").unwrap();
        drop(listener.next_request().unwrap()); // Rejects the request.
    });
    for why in [&b"no room"[..], b""] {
        let Err(Error::Peer(PeerError::Connection(failed))) = Connection::connect(address) else {
            panic!("the connection was accepted");
        };
        assert_eq!((failed.kind, failed.status, failed.private_data), (CmEventKind::Rejected, 28, padded(why, 148)));
    }
    server.join().unwrap();
    let error = Connection::connect(address).expect_err("the listener was dropped");
    let failed = error.connection().expect("the error is a failed connection");
    assert_eq!((failed.kind, failed.status, error.errno()), (CmEventKind::Rejected, 8, libc::ECONNREFUSED));
    assert_eq!(error.to_string(), "the connection was refused: no program listens on that port");
}

#[test]
fn private_data_beyond_the_limit_is_rejected() {
    let listener = Listener::bind(HERE).unwrap();
    let outgoing = Outgoing::resolve(listener.local_addr()).unwrap();
    let qp = queue_pair(outgoing.id());
    let too_long = with_data(ConnParam::default(), &[1; 57]);
    assert_eq!(errno(outgoing.id().connect(&too_long)), libc::EINVAL);
    outgoing.id().connect(&with_data(ConnParam::default(), &[1; 56])).unwrap();
    let incoming = listener.next_request().unwrap();
    assert_eq!(incoming.private_data(), [1; 56]);
    assert_eq!(errno(incoming.reject(&[2; 149])), libc::EINVAL);
    drop(qp);
}

#[test]
fn disconnect_is_reported_to_the_peer() {
    let (client, server) = connected();
    let waiting = std::thread::spawn(move || server.wait_disconnected().unwrap());
    client.disconnect().unwrap();
    waiting.join().unwrap();

    let (client, server) = connected();
    drop(client);
    server.wait_disconnected().unwrap();

    let (client, server) = connected();
    let both = [client, server].map(|end| std::thread::spawn(move || end.disconnect().unwrap()));
    both.into_iter().for_each(|end| end.join().unwrap());
}

#[test]
fn queue_pair_keeps_its_connection_without_the_id() {
    let listener = Listener::bind(HERE).unwrap();
    let (id, events) = resolved_id(listener.local_addr());
    let qp = queue_pair(&id);
    id.connect(&ConnParam::default()).unwrap();
    let accepting = std::thread::spawn(move || listener.accept().unwrap());
    events.next_event().unwrap().expect(CmEventKind::Established).unwrap();
    let server = accepting.join().unwrap();
    drop((id, events));
    send(&qp, server.qp());
    drop(qp);
    server.wait_disconnected().unwrap();
}

/// Returns an id with a resolved path to `address`, and its channel.
fn resolved_id(address: SocketAddr) -> (CmId, EventChannel) {
    let channel = EventChannel::create().unwrap();
    let id = CmId::create(&channel, PortSpace::Tcp).unwrap();
    resolve(&id, &channel, address);
    (id, channel)
}

fn resolve(id: &CmId, channel: &EventChannel, address: SocketAddr) {
    id.resolve_addr(None, address, RESOLVE_TIMEOUT).unwrap();
    channel.next_event().unwrap().expect(CmEventKind::AddrResolved).unwrap();
    id.resolve_route(RESOLVE_TIMEOUT).unwrap();
    channel.next_event().unwrap().expect(CmEventKind::RouteResolved).unwrap();
}

/// Returns the next event, which must be of this kind. Skips late events of earlier connections.
fn next(channel: &EventChannel, kind: CmEventKind) -> CmEvent {
    loop {
        let event = channel.next_event().unwrap();
        if event.kind() != CmEventKind::TimewaitExit {
            return event.expect(kind).unwrap();
        }
    }
}

/// Returns a listener on `channel`, and its address.
fn listening(channel: &EventChannel, port_space: PortSpace) -> (CmId, SocketAddr) {
    let listener = CmId::create(channel, port_space).unwrap();
    listener.bind(HERE).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    assert_ne!(address.port(), 0);
    (listener, address)
}

#[test]
fn events_name_their_ids() {
    let (servers, clients) = (EventChannel::create().unwrap(), EventChannel::create().unwrap());
    assert!(servers.try_next().is_none(), "try_next returns at once without an event");
    assert_eq!(servers.as_fd().as_raw_fd(), servers.as_raw_fd());
    let (listener, address) = listening(&servers, PortSpace::Tcp);
    let ids = [(); 2].map(|()| CmId::create(&clients, PortSpace::Tcp).unwrap());
    let mut ends = vec![];
    for id in &ids {
        resolve(id, &clients, address);
        ends.push(queue_pair(id));
        id.connect(&ConnParam::default()).unwrap();
        let mut request = next(&servers, CmEventKind::ConnectRequest);
        assert_eq!(request.id(), listener.id());
        let taken = request.take_request().unwrap();
        assert!(request.take_request().is_none());
        ends.push(queue_pair(&taken));
        taken.accept(&with_data(request.param().unwrap().clone(), b"")).unwrap();
        assert_eq!(next(&servers, CmEventKind::Established).id(), taken.id());
        assert_eq!(next(&clients, CmEventKind::Established).id(), id.id());
        id.disconnect().unwrap();
        assert_eq!(next(&servers, CmEventKind::Disconnected).id(), taken.id());
        taken.disconnect().unwrap();
        assert_eq!(next(&clients, CmEventKind::Disconnected).id(), id.id());
    }
    assert!(ends.iter().all(|qp| qp.state() == QpState::Err));
}

#[test]
fn pending_events_migrate_with_their_id() {
    let (old, new) = (EventChannel::create().unwrap(), EventChannel::create().unwrap());
    let (_listener, address) = listening(&old, PortSpace::Tcp);
    let (moves, stays) = (CmId::create(&old, PortSpace::Tcp).unwrap(), CmId::create(&old, PortSpace::Tcp).unwrap());
    for id in [&moves, &stays] {
        id.resolve_addr(None, address, RESOLVE_TIMEOUT).unwrap();
    }
    moves.migrate(&new).unwrap();
    assert_eq!(new.next_event().unwrap().id(), moves.id());
    let left = old.next_event().unwrap();
    assert_eq!((left.kind(), left.id()), (CmEventKind::AddrResolved, stays.id()));
    moves.resolve_route(RESOLVE_TIMEOUT).unwrap();
    assert_eq!(new.next_event().unwrap().expect(CmEventKind::RouteResolved).unwrap().id(), moves.id());
    assert!(old.try_next().is_none());
}

#[test]
fn program_connects_a_queue_pair_not_built_on_the_id() {
    let (servers, clients) = (EventChannel::create().unwrap(), EventChannel::create().unwrap());
    let (_listener, address) = listening(&servers, PortSpace::Tcp);
    let id = CmId::create(&clients, PortSpace::Tcp).unwrap();
    resolve(&id, &clients, address);
    let [own, peers] = [&id; 2].map(|id| {
        let pd = id.context().unwrap().alloc_pd().unwrap();
        let cq = pd.context().create_cq(32).unwrap();
        pd.create_qp(&cq, &cq).build().unwrap()
    });
    let to_rts = |qp: &QueuePair, id: &CmId| {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let (attr, mask) = id.init_qp_attr(state).unwrap();
            qp.modify(&attr, mask).unwrap();
        }
    };
    id.connect(&ConnParam { qp_num: own.qp_num().get(), ..ConnParam::default() }).unwrap();
    let mut request = servers.next_event().unwrap().expect(CmEventKind::ConnectRequest).unwrap();
    let taken = request.take_request().unwrap();
    to_rts(&peers, &taken);
    let terms = request.param().unwrap().clone();
    taken.accept(&ConnParam { qp_num: peers.qp_num().get(), ..with_data(terms, b"") }).unwrap();
    clients.next_event().unwrap().expect(CmEventKind::ConnectResponse).unwrap();
    to_rts(&own, &id);
    id.establish().unwrap();
    servers.next_event().unwrap().expect(CmEventKind::Established).unwrap();
    send(&own, &peers);
}

/// Returns a path of a connection over IPv4 by the loopback interface's IPv6 address, if that has
/// one.
fn ipv6_path(id: &CmId) -> Option<Path> {
    let here = Gid::from(IpAddr::V6(Ipv6Addr::LOCALHOST));
    let has_address = id.context().unwrap().gid_entries().iter().any(|entry| entry.gid == here);
    has_address.then(|| Path { sgid: here, dgid: here, ..id.path().unwrap() })
}

#[test]
fn connection_with_refused_alternate_path_disconnects() {
    let (client, server) = connected();
    let Some(path) = ipv6_path(client.id()) else {
        return eprintln!("skipped: the loopback interface has no IPv6 address");
    };
    client.id().load_alternate(&path).unwrap();
    let server = std::thread::spawn(move || server.wait_disconnected());
    client.disconnect().unwrap();
    server.join().unwrap().unwrap();
}

#[test]
fn both_ends_load_an_alternate_path() {
    let (servers, clients) = (EventChannel::create().unwrap(), EventChannel::create().unwrap());
    let (_listener, address) = listening(&servers, PortSpace::Tcp);
    let id = CmId::create(&clients, PortSpace::Tcp).unwrap();
    resolve(&id, &clients, address);
    let own = queue_pair(&id);
    assert_eq!(errno(id.allow_alternates(true)), libc::EINVAL, "not connected");
    id.connect(&ConnParam::default()).unwrap();
    let mut request = next(&servers, CmEventKind::ConnectRequest);
    let taken = request.take_request().unwrap();
    let peers = queue_pair(&taken);
    taken.accept(&with_data(request.param().unwrap().clone(), b"")).unwrap();
    next(&clients, CmEventKind::Established);
    next(&servers, CmEventKind::Established);
    let Some(path) = ipv6_path(&id) else {
        return eprintln!("skipped: the loopback interface has no IPv6 address");
    };
    id.load_alternate(&path).unwrap();
    assert_eq!(next(&clients, CmEventKind::RouteError).status(), -libc::EOPNOTSUPP);
    taken.allow_alternates(true).unwrap();
    id.load_alternate(&path).unwrap();
    next(&clients, CmEventKind::RouteResolved);
    send(&own, &peers);
    send(&peers, &own);
    assert_eq!((own.path_state(), peers.path_state()), (MigState::Armed, MigState::Armed));
    own.migrate().unwrap();
    send(&own, &peers);
    assert_eq!(peers.path_state(), MigState::Migrated);
    for id in [&id, &taken] {
        id.notify(AsyncEventKind::PathMig).unwrap();
        assert_eq!(id.path().unwrap().sgid, path.sgid);
    }
}

#[test]
fn multicast_group_is_joined_by_address() {
    let channel = EventChannel::create().unwrap();
    let id = CmId::create(&channel, PortSpace::Udp).unwrap();
    id.bind(HERE).unwrap();
    let qp = queue_pair(&id);
    let [a, b, ..] = std::process::id().to_le_bytes();
    let group = SocketAddr::from(([239, b, a, 77], 0));
    assert_eq!(errno(id.join_multicast(HERE, JoinFlags::default())), libc::EINVAL);
    id.join_multicast(group, JoinFlags::default()).unwrap();
    let event = next(&channel, CmEventKind::MulticastJoin);
    let peer = event.ud_peer(&qp.pd()).unwrap();
    let inbox = qp.pd().alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    qp.post_recv(1, &[inbox.slice(..).unwrap()]).unwrap();
    qp.post_send(&WorkRequest::send_inline(b"to all").to(&peer.ah, peer.qpn, peer.qkey).signaled()).unwrap();
    let lengths = [(); 2].map(|()| qp.send_cq().wait(TIMEOUT).unwrap().check().unwrap().byte_len());
    assert!(lengths.contains(&46), "the sender receives its own datagram after a GRH: {lengths:?}");
    id.leave_multicast(group).unwrap();
    assert_eq!(errno(id.leave_multicast(group)), libc::EADDRNOTAVAIL);
}

#[test]
fn uc_connection_reports_uc_and_sends() {
    let (servers, clients) = (EventChannel::create().unwrap(), EventChannel::create().unwrap());
    let listener = CmId::create_for(&servers, PortSpace::Tcp, Service::Uc).unwrap();
    listener.bind(HERE).unwrap();
    listener.listen(0).unwrap();
    let id = CmId::create_for(&clients, PortSpace::Tcp, Service::Uc).unwrap();
    resolve(&id, &clients, listener.local_addr().unwrap());
    let own = queue_pair(&id);
    assert_eq!(own.service(), Service::Uc);
    id.connect(&ConnParam::default()).unwrap();
    let mut request = servers.next_event().unwrap().expect(CmEventKind::ConnectRequest).unwrap();
    let taken = request.take_request().unwrap();
    let peers = queue_pair(&taken);
    assert_eq!(peers.service(), Service::Uc);
    taken.accept(&with_data(request.param().unwrap().clone(), b"")).unwrap();
    clients.next_event().unwrap().expect(CmEventKind::Established).unwrap();
    servers.next_event().unwrap().expect(CmEventKind::Established).unwrap();
    send(&own, &peers);
}

/// One end of a datagram service: a queue pair with its completion queue and memory.
struct Datagrams {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
    inbox: MemoryRegion,
}

impl Datagrams {
    fn new(id: &CmId) -> Self {
        let pd = id.context().unwrap().alloc_pd().unwrap();
        let cq = pd.context().create_cq(32).unwrap();
        let qp = pd.create_qp(&cq, &cq).build_on(id).unwrap();
        let inbox = pd.alloc_mr(200, Access::LOCAL_WRITE).unwrap();
        qp.post_recv(1, &[inbox.slice(..).unwrap()]).unwrap();
        assert_eq!((qp.service(), qp.state()), (Service::Ud, QpState::Rts));
        Self { pd, cq, qp, inbox }
    }

    fn send(&self, text: &[u8], peer: &UdPeer) {
        self.qp.post_send(&WorkRequest::send_inline(text).to(&peer.ah, peer.qpn, peer.qkey)).unwrap();
    }

    fn expect(&self, text: &[u8]) {
        let received = *self.cq.wait(TIMEOUT).unwrap().check().unwrap();
        assert_eq!(received.byte_len() as usize, 40 + text.len());
        assert_eq!(self.inbox.to_vec(40..40 + text.len()).unwrap(), text);
    }
}

#[test]
fn datagram_service_is_found_by_port() {
    let (servers, clients) = (EventChannel::create().unwrap(), EventChannel::create().unwrap());
    let (_listener, address) = listening(&servers, PortSpace::Udp);
    let id = CmId::create(&clients, PortSpace::Udp).unwrap();
    resolve(&id, &clients, address);
    let client = Datagrams::new(&id);
    id.connect(&with_data(ConnParam::default(), b"where?")).unwrap();

    let mut request = servers.next_event().unwrap().expect(CmEventKind::ConnectRequest).unwrap();
    assert_eq!(request.private_data(), padded(b"where?", 180));
    let taken = request.take_request().unwrap();
    let server = Datagrams::new(&taken);
    taken.accept(&with_data(ConnParam::default(), b"here")).unwrap();

    let found = clients.next_event().unwrap().expect(CmEventKind::Established).unwrap();
    assert_eq!(found.private_data(), padded(b"here", 136));
    let peer = found.ud_peer(&client.pd).unwrap();
    assert_eq!(peer.qpn, server.qp.qp_num());
    client.send(b"datagram", &peer);
    server.expect(b"datagram");
}

#[test]
fn datagram_service_rejects_a_request() {
    let (servers, clients) = (EventChannel::create().unwrap(), EventChannel::create().unwrap());
    let (_listener, address) = listening(&servers, PortSpace::Udp);
    let id = CmId::create(&clients, PortSpace::Udp).unwrap();
    resolve(&id, &clients, address);
    let _client = Datagrams::new(&id);
    id.connect(&ConnParam::default()).unwrap();
    let mut request = servers.next_event().unwrap().expect(CmEventKind::ConnectRequest).unwrap();
    request.take_request().unwrap().reject(b"not you").unwrap();
    let answer = clients.next_event().unwrap();
    assert_eq!((answer.kind(), answer.status()), (CmEventKind::Unreachable, 2));
    assert!(answer.check().unwrap_err().connection().is_some_and(|failed| failed.kind == CmEventKind::Unreachable));
}

#[test]
fn event_of_another_kind_is_an_error() {
    let channel = EventChannel::create().unwrap();
    let (_listener, address) = listening(&channel, PortSpace::Tcp);
    let id = CmId::create(&channel, PortSpace::Tcp).unwrap();
    id.resolve_addr(None, address, RESOLVE_TIMEOUT).unwrap();
    let event = channel.next_event().unwrap();
    let pd = id.context().unwrap().alloc_pd().unwrap();
    assert!(matches!(
        event.ud_peer(&pd),
        Err(Error::Argument(ArgumentError::MissingValue { kind: CmEventKind::AddrResolved, .. }))
    ));
    assert!(event.param().is_none() && event.private_data().is_empty());
    assert!(event.expect(CmEventKind::Established).unwrap_err().connection().is_some());
}

#[test]
fn port_in_use_is_refused_to_a_second_listener() {
    let listener = Listener::bind(HERE).unwrap();
    let taken = listener.local_addr();
    assert_eq!(errno(Listener::bind(taken)), libc::EADDRINUSE);
    // The errno of the kernel if the port is in use on one address.
    assert_eq!(errno(Listener::bind((Ipv4Addr::UNSPECIFIED, taken.port()))), libc::EADDRNOTAVAIL);
    drop(listener);
    Listener::bind(taken).unwrap();
    // Addresses reserved for documentation, which no host has.
    let foreign: SocketAddr = (Ipv4Addr::new(192, 0, 2, 1), 0).into();
    assert_eq!(errno(Listener::bind(foreign)), libc::EADDRNOTAVAIL);
}

/// A loopback address that no device has, as `localhost` is for a program whose devices are on
/// other interfaces.
// clause: CM-LOOPBACK
#[test]
fn loopback_address_without_device_is_this_host() {
    let without_device = |port| SocketAddr::from((Ipv4Addr::new(127, 77, 0, 1), port));
    let listener = Listener::bind(without_device(0)).unwrap();
    let port = listener.local_addr().port();
    assert_eq!(listener.local_addr(), (Ipv4Addr::UNSPECIFIED, port).into());
    let server = std::thread::spawn(move || listener.accept().unwrap());
    let client = Connection::connect(without_device(port)).unwrap();
    assert_eq!(client.id().peer_addr(), Some((Ipv4Addr::LOCALHOST, port).into()));
    send(client.qp(), server.join().unwrap().qp());
}

#[test]
fn wildcard_listener_accepts_both_families() {
    let listener = Listener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    let port = listener.local_addr().port();
    let context = Context::open_first().unwrap();
    let has_ipv6 = context.gid_entries().iter().any(|entry| entry.gid == IpAddr::from(Ipv6Addr::LOCALHOST).into());
    let mut addresses = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))];
    addresses.extend(has_ipv6.then(|| SocketAddr::from((Ipv6Addr::LOCALHOST, port))));
    for address in addresses {
        let (id, events) = resolved_id(address);
        let qp = queue_pair(&id);
        id.connect(&ConnParam::default()).unwrap();
        let incoming = listener.next_request().unwrap();
        assert_eq!(incoming.id().local_addr(), Some(address));
        let accepting = std::thread::spawn(move || {
            let (peers, answer) = (queue_pair(incoming.id()), incoming.answer());
            incoming.accept(peers, &answer).unwrap()
        });
        events.next_event().unwrap().expect(CmEventKind::Established).unwrap();
        send(&qp, accepting.join().unwrap().qp());
    }
}

#[test]
fn late_option_is_rejected() {
    let channel = EventChannel::create().unwrap();
    let (listener, address) = listening(&channel, PortSpace::Tcp);
    let id = CmId::create(&channel, PortSpace::Tcp).unwrap();
    id.set_option(IdOption::Tos(0x20)).unwrap();
    id.set_option(IdOption::AckTimeout(19)).unwrap();
    resolve(&id, &channel, address);
    let qp = queue_pair(&id);
    id.connect(&ConnParam::default()).unwrap();
    let mut request = channel.next_event().unwrap().expect(CmEventKind::ConnectRequest).unwrap();
    let taken = request.take_request().unwrap();
    let peers = queue_pair(&taken);
    taken.accept(&with_data(request.param().unwrap().clone(), b"")).unwrap();
    for _ in 0..2 {
        channel.next_event().unwrap().expect(CmEventKind::Established).unwrap();
    }
    let terms = qp.query();
    assert_eq!((terms.av.traffic_class, terms.timeout), (0x20, 19));
    drop(peers);
    assert!(matches!(listener.set_option(IdOption::ReuseAddr(true)), Err(Error::Argument(_))), "it is bound");
}

#[test]
fn unbound_id_has_no_device() {
    let channel = EventChannel::create().unwrap();
    let id = CmId::create(&channel, PortSpace::Tcp).unwrap();
    assert!(id.device().is_none() && id.local_addr().is_none() && id.peer_addr().is_none());
    let error = id.context().unwrap_err();
    assert!(matches!(error, Error::Environment(_)), "{error}");
    assert_eq!(error.to_string(), "the id is not bound to a device; bind it or resolve an address");
    id.bind(HERE).unwrap();
    assert_eq!(id.device().unwrap().name(), Context::open_first().unwrap().device().name());
}
