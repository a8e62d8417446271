//! The Rust API over the loopback device: XRC, a second way for a connection, multicast.

use roxe::{
    Access, AlternatePath, AsyncEventKind, CompletionQueue, Context, Error, Gid, MemoryRegion, MigState, PostError,
    ProtectionDomain, Qkey, Qpn, QueuePair, Service, SharedReceiveQueue, WcOpcode, WcStatus, WorkRequest, XrcDomain,
};
use std::fs::File;
use std::net::Ipv4Addr;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);
const REMOTE: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// A receiving side with a domain, and a sender that is connected to it.
struct Xrc {
    pd: ProtectionDomain,
    domain: XrcDomain,
    cq: CompletionQueue,
    target: QueuePair,
    sends: CompletionQueue,
    sender: QueuePair,
    region: MemoryRegion,
}

impl Xrc {
    fn new() -> Self {
        let context = Context::open_first().unwrap();
        let pd = context.alloc_pd().unwrap();
        let (cq, sends) = (context.create_cq(64).unwrap(), context.create_cq(64).unwrap());
        let domain = context.open_xrc_domain().unwrap();
        let target = domain.create_target().build().unwrap();
        let sender = pd.create_qp(&sends, &sends).service(Service::XrcIni).build().unwrap();
        sender.connect(&target.endpoint()).unwrap();
        target.connect(&sender.endpoint()).unwrap();
        let region = pd.alloc_mr(1 << 16, REMOTE).unwrap();
        Self { pd, domain, cq, target, sends, sender, region }
    }

    fn srq(&self) -> SharedReceiveQueue {
        self.domain.create_srq(&self.pd, &self.cq, 16, 2).unwrap()
    }

    /// Posts a request and waits until it has ended.
    fn send(&self, request: WorkRequest<'_>) -> WcStatus {
        self.sender.post_send(&request.signaled()).unwrap();
        self.sends.wait(PATIENCE).unwrap().status()
    }
}

#[test]
fn each_message_takes_a_receive_of_the_queue_it_names() {
    let xrc = Xrc::new();
    let queues = [xrc.srq(), xrc.srq(), xrc.srq()];
    for (n, srq) in (0..).zip(&queues) {
        srq.post_recv(n as u64, &[xrc.region.slice(n * 64..n * 64 + 64).unwrap()]).unwrap();
    }
    for n in [2, 0, 1] {
        let text = [n as u8; 9];
        let request = WorkRequest::send_inline(&text).imm(n as u32).to_srq(queues[n].number().unwrap());
        assert_eq!(xrc.send(request), WcStatus::Success);
        let received = *xrc.cq.wait(PATIENCE).unwrap().ok().unwrap();
        assert_eq!((received.wr_id(), received.imm_data()), (n as u64, Some(n as u32)));
        assert_eq!(received.qp_num(), xrc.target.qp_num());
        assert_eq!(xrc.region.to_vec(n * 64..n * 64 + 9).unwrap(), text);
    }
}

#[test]
fn memory_is_reached_through_the_domain_of_the_named_queue() {
    let xrc = Xrc::new();
    let number = xrc.srq().number().unwrap();
    // The queue above is gone already: nothing may be reached through it.
    let remote = xrc.region.remote();
    assert_eq!(xrc.send(WorkRequest::write_inline(b"x", remote).to_srq(number)), WcStatus::RemInvReqErr);

    let xrc = Xrc::new();
    let srq = xrc.srq();
    let (number, remote) = (srq.number().unwrap(), xrc.region.remote().offset(4096));
    assert_eq!(xrc.send(WorkRequest::write_inline(b"a word ", remote).to_srq(number)), WcStatus::Success);
    let into = [xrc.region.slice(..8).unwrap()];
    assert_eq!(xrc.send(WorkRequest::read(&into, remote).to_srq(number)), WcStatus::Success);
    assert_eq!(xrc.region.to_vec(..8).unwrap(), b"a word \0");
    assert_eq!(xrc.send(WorkRequest::fetch_add(&into, remote, 1 << 56).to_srq(number)), WcStatus::Success);
    assert_eq!(xrc.region.to_vec(4096..4104).unwrap(), b"a word \x01");
}

#[test]
fn a_message_without_a_queue_is_refused_when_it_is_posted() {
    let xrc = Xrc::new();
    let error = xrc.sender.post_send(&WorkRequest::send_inline(b"to whom?")).unwrap_err();
    assert!(matches!(error, Error::Post { source: PostError::MissingDestination, .. }), "{error:?}");
    assert!(error.to_string().contains("to_srq"), "{error}");
}

#[test]
fn a_target_has_no_queues_of_its_own() {
    let xrc = Xrc::new();
    assert_eq!(xrc.target.service(), Service::XrcTgt);
    let posts = [xrc.target.post_send(&WorkRequest::send_inline(b"x")), xrc.target.post_recv(1, &[])];
    for error in posts.map(Result::unwrap_err) {
        assert!(matches!(error, Error::Post { .. }), "{error:?}");
    }
    let pd = &xrc.pd;
    let made = pd.create_qp(&xrc.cq, &xrc.cq).service(Service::XrcTgt).build();
    assert!(matches!(made, Err(Error::Provider(_))), "a target is made in a domain");
}

#[test]
fn who_opens_the_same_file_meets_in_one_domain() {
    let xrc = Xrc::new();
    let context = xrc.pd.context();
    let file = File::open("/proc/self/exe").unwrap();
    let one = context.open_shared_xrc_domain(&file).unwrap();
    let other = context.open_shared_xrc_domain(&file).unwrap();
    let srq = one.create_srq(&xrc.pd, &xrc.cq, 4, 1).unwrap();
    srq.post_recv(5, &[]).unwrap();

    let target = other.create_target().build().unwrap();
    let sender = xrc.pd.create_qp(&xrc.sends, &xrc.sends).service(Service::XrcIni).build().unwrap();
    sender.connect(&target.endpoint()).unwrap();
    target.connect(&sender.endpoint()).unwrap();
    sender.post_send(&WorkRequest::send_inline(b"").to_srq(srq.number().unwrap())).unwrap();
    assert_eq!(xrc.cq.wait(PATIENCE).unwrap().ok().unwrap().wr_id(), 5);
    let alone = context.open_xrc_domain().unwrap();
    let number = alone.create_srq(&xrc.pd, &xrc.cq, 4, 1).unwrap().number().unwrap();
    sender.post_send(&WorkRequest::send_inline(b"").to_srq(number).signaled()).unwrap();
    assert_eq!(xrc.sends.wait(PATIENCE).unwrap().status(), WcStatus::RemInvReqErr, "a queue of another domain");
}

/// Two connected queue pairs that report to one queue, and the index of an address of the other family.
fn two_ways(service: Service) -> Option<(Context, CompletionQueue, [QueuePair; 2], AlternatePath)> {
    let context = Context::open_first().unwrap();
    let entries = context.gid_entries();
    let Some(second) = entries.iter().find(|entry| entry.gid.is_ipv4() != entries[0].gid.is_ipv4()) else {
        eprintln!("skipped: the loopback interface has no IPv6 address");
        return None;
    };
    let path = AlternatePath { peer: second.gid, gid_index: second.index, timeout: 14 };
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let ends = [0, 1].map(|_| pd.create_qp(&cq, &cq).service(service).build().unwrap());
    ends[0].connect(&ends[1].endpoint()).unwrap();
    ends[1].connect(&ends[0].endpoint()).unwrap();
    Some((context, cq, ends, path))
}

/// A message from one end to the other.
fn ping(cq: &CompletionQueue, from: &QueuePair, to: &QueuePair) {
    to.post_recv(0, &[]).unwrap();
    from.post_send(&WorkRequest::send_inline(b"").signaled()).unwrap();
    let opcodes = [0, 1].map(|_| cq.wait(PATIENCE).unwrap().ok().unwrap().opcode());
    assert!(opcodes.contains(&WcOpcode::Send) && opcodes.contains(&WcOpcode::Recv), "{opcodes:?}");
}

#[test]
fn a_connection_goes_over_to_the_way_that_both_ends_offered() {
    for service in [Service::Rc, Service::Uc] {
        let Some((context, cq, [alice, bob], path)) = two_ways(service) else { return };
        alice.offer_path(&path).unwrap();
        assert_eq!([&alice, &bob].map(QueuePair::path_state), [MigState::Rearm, MigState::Migrated]);
        bob.offer_path(&path).unwrap();
        ping(&cq, &alice, &bob);
        ping(&cq, &bob, &alice);
        assert_eq!([&alice, &bob].map(QueuePair::path_state), [MigState::Armed; 2]);

        bob.migrate().unwrap();
        ping(&cq, &bob, &alice);
        ping(&cq, &alice, &bob);
        assert_eq!([&alice, &bob].map(QueuePair::path_state), [MigState::Migrated; 2]);
        assert_eq!([&alice, &bob].map(|qp| qp.query().av.sgid), [path.peer; 2]);
        let mut events = [0, 1].map(|_| context.next_async_event().unwrap());
        events.sort_by_key(|event| event.object == Some(bob.id()));
        assert_eq!(events.map(|event| event.kind), [AsyncEventKind::PathMig; 2]);
        assert_eq!(events.map(|event| event.object), [Some(alice.id()), Some(bob.id())]);
    }
}

#[test]
fn a_way_that_is_not_armed_cannot_be_taken() {
    let Some((_context, _cq, [alice, _bob], path)) = two_ways(Service::Rc) else { return };
    let wrong = AlternatePath { gid_index: 0, ..path };
    assert!(matches!(alice.offer_path(&wrong), Err(Error::Provider(_))), "addresses of two families");
    alice.offer_path(&path).unwrap();
    assert!(matches!(alice.migrate(), Err(Error::Provider(_))));
}

#[test]
fn members_of_a_group_get_what_is_sent_to_it() {
    let context = Context::open_first().unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let qkey = Qkey(0x77);
    let member = || {
        let qp = pd.create_qp(&cq, &cq).service(Service::Ud).qkey(qkey).build().unwrap();
        qp.activate().unwrap();
        qp
    };
    let [sender, stays, leaves] = [member(), member(), member()];
    let [a, b, ..] = std::process::id().to_le_bytes();
    let group = Gid::from(Ipv4Addr::new(239, a, b, 9));
    let inbox = pd.alloc_mr(400, Access::LOCAL_WRITE).unwrap();
    for (n, qp) in (0..).zip([&stays, &leaves]) {
        qp.attach_mcast(group).unwrap();
        (0..2).for_each(|_| qp.post_recv(n, &[inbox.slice(..200).unwrap()]).unwrap());
    }
    let everyone = pd.create_ah(group, 0).unwrap();
    let say =
        |text: &[u8]| sender.post_send(&WorkRequest::send_inline(text).to(&everyone, Qpn::MULTICAST, qkey)).unwrap();
    say(b"to two");
    let mut ids = [0, 1].map(|_| cq.wait(PATIENCE).unwrap().ok().unwrap().wr_id());
    ids.sort_unstable();
    assert_eq!(ids, [0, 1]);

    leaves.detach_mcast(group).unwrap();
    assert!(matches!(leaves.detach_mcast(group), Err(Error::Provider(_))));
    say(b"to one");
    let last = *cq.wait(PATIENCE).unwrap().ok().unwrap();
    assert_eq!((last.wr_id(), last.qp_num(), last.src_qp()), (0, stays.qp_num(), sender.qp_num()));
    assert_eq!(inbox.to_vec(40..46).unwrap(), b"to one");

    let rc = pd.create_qp(&cq, &cq).build().unwrap();
    assert!(matches!(rc.attach_mcast(group), Err(Error::Provider(_))), "groups are for datagrams");
    let single = Gid::from(Ipv4Addr::LOCALHOST);
    assert!(matches!(stays.attach_mcast(single), Err(Error::Provider(_))), "no group");
}
