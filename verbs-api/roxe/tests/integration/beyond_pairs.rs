//! The Rust API over the loopback device: XRC domains and alternate paths.

use roxe::{
    Access, AlternatePath, AsyncEventKind, CompletionQueue, Context, Error, MigState, PostError, ProtectionDomain,
    QueuePair, Service, WcOpcode, WcStatus, WindowKind, WorkRequest,
};
use std::fs::File;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);

/// A target in a domain, and a sender that is connected to it.
struct Xrc {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    target: QueuePair,
    sends: CompletionQueue,
    sender: QueuePair,
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
        Self { pd, cq, target, sends, sender }
    }
}

#[test]
fn xrc_message_without_srq_is_refused() {
    let xrc = Xrc::new();
    let error = xrc.sender.post_send(&WorkRequest::send_inline(b"x")).unwrap_err();
    assert!(error.request().is_some_and(|request| request.source == PostError::MissingDestination), "{error:?}");
    assert!(error.to_string().contains("to_srq"), "{error}");
}

#[test]
fn xrc_sender_binds_and_closes_window_without_srq() {
    let xrc = Xrc::new();
    let region = xrc.pd.alloc_mr(64, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
    let window = xrc.pd.alloc_mw(WindowKind::QueuePair).unwrap();
    let binding = window.bind(&region, .., Access::REMOTE_READ).unwrap();
    for request in [WorkRequest::bind(&binding), window.close()] {
        xrc.sender.post_send(&request.signaled()).unwrap();
        xrc.sends.wait(TIMEOUT).unwrap().check().unwrap();
    }
}

#[test]
fn xrc_target_has_no_queues() {
    let xrc = Xrc::new();
    assert_eq!(xrc.target.service(), Service::XrcTgt);
    let posts = [xrc.target.post_send(&WorkRequest::send_inline(b"x")), xrc.target.post_recv(1, &[])];
    for error in posts.map(Result::unwrap_err) {
        assert!(error.request().is_some(), "{error:?}");
    }
    let pd = &xrc.pd;
    let made = pd.create_qp(&xrc.cq, &xrc.cq).service(Service::XrcTgt).build();
    assert!(matches!(made, Err(Error::Argument(_))), "only a domain creates a target");
}

#[test]
fn same_file_opens_the_same_domain() {
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
    assert_eq!(xrc.cq.wait(TIMEOUT).unwrap().check().unwrap().wr_id(), 5);
    let separate = context.open_xrc_domain().unwrap();
    let number = separate.create_srq(&xrc.pd, &xrc.cq, 4, 1).unwrap().number().unwrap();
    sender.post_send(&WorkRequest::send_inline(b"").to_srq(number).signaled()).unwrap();
    assert_eq!(xrc.sends.wait(TIMEOUT).unwrap().status(), WcStatus::RemInvReqErr, "a queue of another domain");
}

/// Returns two connected queue pairs with one completion queue, and an alternate path of the other
/// address family.
fn two_paths(service: Service) -> Option<(Context, CompletionQueue, [QueuePair; 2], AlternatePath)> {
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

/// Sends a message from one end to the other.
fn ping(cq: &CompletionQueue, from: &QueuePair, to: &QueuePair) {
    to.post_recv(0, &[]).unwrap();
    from.post_send(&WorkRequest::send_inline(b"").signaled()).unwrap();
    let opcodes = [0, 1].map(|_| cq.wait(TIMEOUT).unwrap().check().unwrap().opcode());
    assert!(opcodes.contains(&WcOpcode::Send) && opcodes.contains(&WcOpcode::Recv), "{opcodes:?}");
}

#[test]
fn connection_migrates_to_the_offered_path() {
    for service in [Service::Rc, Service::Uc] {
        let Some((context, cq, [alice, bob], path)) = two_paths(service) else { return };
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
fn migrate_without_armed_path_is_rejected() {
    let Some((_context, _cq, [alice, _bob], path)) = two_paths(Service::Rc) else { return };
    let wrong = AlternatePath { gid_index: 0, ..path };
    assert!(matches!(alice.offer_path(&wrong), Err(Error::Argument(_))), "addresses of two families");
    alice.offer_path(&path).unwrap();
    assert!(matches!(alice.migrate(), Err(Error::Argument(_))));
}
