//! The Rust API over the loopback device, with both ends in this process: features of the API, and
//! errors of its misuse. `tests/tests/integration/cases` tests the effects of requests.

use roxe::{
    Access, AddressHandle, ArgumentError, CompletionChannel, CompletionQueue, Context, Error, MemoryRegion,
    MemoryWindow, PathMtu, PostError, ProtectionDomain, QpState, QueuePair, ResourceError, Service, SharedReceiveQueue,
    WcOpcode, WcStatus, WindowKind, WorkCompletion, WorkRequest,
};
use std::collections::HashSet;
use std::os::unix::fs::FileExt;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);
const REMOTE: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Two connected queue pairs, each with its own completion queue and region.
struct Pair {
    pd: ProtectionDomain,
    alice: End,
    bob: End,
}

struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    region: MemoryRegion,
}

impl End {
    fn new(pd: &ProtectionDomain, service: Service) -> Self {
        let cq = pd.context().create_cq(128).unwrap();
        let qp = pd.create_qp(&cq, &cq).service(service).retry_cnt(1).rnr_retry(1).build().unwrap();
        Self { qp, cq, region: pd.alloc_mr(1 << 16, REMOTE).unwrap() }
    }

    fn wait(&self) -> WorkCompletion {
        self.cq.wait(TIMEOUT).unwrap()
    }

    /// Waits for a completion, which must be successful.
    fn wait_success(&self) -> WorkCompletion {
        *self.wait().check().unwrap()
    }
}

fn pair(service: Service) -> Pair {
    let pd = Context::open_first().unwrap().alloc_pd().unwrap();
    let (alice, bob) = (End::new(&pd, service), End::new(&pd, service));
    for (one, other) in [(&alice, &bob), (&bob, &alice)] {
        match service {
            Service::Ud => one.qp.activate().unwrap(),
            _ => one.qp.connect(&other.qp.endpoint()).unwrap(),
        }
    }
    Pair { pd, alice, bob }
}

#[test]
fn device_memory_serves_sges_and_peers() {
    let Pair { pd, alice, bob } = pair(Service::Rc);
    let card = pd.context().alloc_dm(10_000).unwrap();
    let region = pd.register_dm(&card, 1000.., REMOTE).unwrap();
    drop(card.clone());
    let mut bytes = [0; 8];

    let data: Vec<u8> = (0..9000u32).map(|i| (i * 7) as u8).collect();
    alice.region.write(0, &data).unwrap();
    alice
        .qp
        .post_send(&WorkRequest::write(&[alice.region.slice(..9000).unwrap()], region.remote()).signaled())
        .unwrap();
    alice.wait_success();
    bob.qp.post_send(&WorkRequest::read(&[bob.region.slice(..9000).unwrap()], region.remote()).signaled()).unwrap();
    bob.wait_success();
    assert_eq!(bob.region.to_vec(..9000).unwrap(), data);
    card.read(1000, &mut bytes).unwrap();
    assert_eq!(bytes, data[..8]);

    card.write(1008, &40u64.to_ne_bytes()).unwrap();
    let old = [region.slice(16..24).unwrap()];
    alice.qp.post_send(&WorkRequest::fetch_add(&old, region.remote().offset(8), 2).signaled()).unwrap();
    alice.wait_success();
    for (offset, value) in [(1008, 42), (1016, 40)] {
        card.read(offset, &mut bytes).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), value);
    }

    bob.qp.post_recv(1, &[region.slice(8000..).unwrap()]).unwrap();
    alice.qp.post_send(&WorkRequest::send(&[region.slice(8..16).unwrap()]).signaled()).unwrap();
    alice.wait_success();
    assert_eq!(bob.wait_success().byte_len(), 8);
    card.read(9000, &mut bytes).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), 42);
}

#[test]
fn device_memory_access_beyond_end_is_refused() {
    let pd = Context::open_first().unwrap().alloc_pd().unwrap();
    let max = usize::try_from(pd.context().attr().max_dm_size).unwrap();
    for len in [0, max + 1] {
        assert!(pd.context().alloc_dm(len).is_err_and(|error| error.refusal().is_some()), "{len}");
    }
    let card = pd.context().alloc_dm(100).unwrap();
    for offset in [98, 100] {
        assert!(matches!(card.write(offset, b"four"), Err(Error::Argument(_))), "{offset}");
    }
    assert!(matches!(pd.register_dm(&card, ..101, REMOTE), Err(Error::Argument(ArgumentError::OutOfRange { .. }))));
    let region = pd.register_dm(&card, 20..60, Access::LOCAL_WRITE).unwrap();
    assert!(matches!(region.slice(..41), Err(Error::Argument(ArgumentError::OutOfRange { .. }))));
    assert_eq!((region.slice(1..).unwrap().addr, region.len()), (1, 40));
}

#[test]
fn completion_event_wakes_a_waiting_thread() {
    let Pair { pd, alice, .. } = pair(Service::Rc);
    let channel = pd.context().create_comp_channel().unwrap();
    let cq = pd.context().create_cq_with_channel(16, &channel).unwrap();
    let receiver = pd.create_qp(&cq, &cq).build().unwrap();
    let sender = pd.create_qp(&alice.cq, &alice.cq).build().unwrap();
    receiver.connect(&sender.endpoint()).unwrap();
    sender.connect(&receiver.endpoint()).unwrap();
    receiver.post_recv(1, &[]).unwrap();
    cq.req_notify(false);
    sender.post_send(&WorkRequest::send_inline(b"")).unwrap();
    assert_eq!(channel.get_event().unwrap(), cq.id());
    assert_eq!(cq.wait(TIMEOUT).unwrap().wr_id(), 1);

    // The count of 1000 is not reached, so the event is raised at the end of the period.
    cq.moderate(1000, Duration::from_millis(1));
    cq.resize(100).unwrap();
    receiver.post_recv(2, &[]).unwrap();
    cq.req_notify(false);
    sender.post_send(&WorkRequest::send_inline(b"")).unwrap();
    assert_eq!(channel.get_event().unwrap(), cq.id());
    assert_eq!(cq.wait(TIMEOUT).unwrap().wr_id(), 2);
    assert!(matches!(cq.resize(0), Err(Error::Argument(_))));
}

#[test]
fn every_address_of_the_port_connects() {
    let pd = Context::open_first().unwrap().alloc_pd().unwrap();
    for entry in pd.context().gid_entries() {
        let cq = pd.context().create_cq(8).unwrap();
        let make = || pd.create_qp(&cq, &cq).gid_index(entry.index).build().unwrap();
        let (one, other) = (make(), make());
        assert_eq!(one.endpoint().gid, entry.gid);
        one.connect(&other.endpoint()).unwrap();
        other.connect(&one.endpoint()).unwrap();
        one.post_recv(1, &[]).unwrap();
        other.post_send(&WorkRequest::send_inline(b"").imm(u32::from(entry.index))).unwrap();
        assert_eq!(cq.wait(TIMEOUT).unwrap().check().unwrap().imm_data(), Some(u32::from(entry.index)));
    }
}

#[test]
fn all_types_are_send_and_sync() {
    fn shared<T: Send + Sync>() {}
    shared::<(Context, ProtectionDomain, MemoryRegion, CompletionQueue, CompletionChannel)>();
    shared::<(QueuePair, SharedReceiveQueue, AddressHandle, WorkRequest<'_>, WorkCompletion, MemoryWindow, Error)>();
}

#[test]
fn threads_post_to_one_queue_pair() {
    const EACH: u64 = 20;
    let Pair { alice, bob, .. } = pair(Service::Rc);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (alice, bob) = (&alice, &bob);
            scope.spawn(move || {
                for i in 0..EACH {
                    let request = WorkRequest::write_inline(&[1], bob.region.remote().offset(thread * EACH + i));
                    alice.qp.post_send(&request.wr_id(thread * EACH + i).signaled()).unwrap();
                }
            });
        }
    });
    let mut ids: Vec<u64> = (0..4 * EACH).map(|_| alice.wait_success().wr_id()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..4 * EACH).collect::<Vec<_>>());
    assert_eq!(bob.region.to_vec(..80).unwrap(), [1; 80]);
}

/// Peers remember a queue pair for some time after its end. They would treat packets of a new queue
/// pair with its number as stale.
#[test]
fn qpn_is_not_reused_soon() {
    let pd = Context::open_first().unwrap().alloc_pd().unwrap();
    let cq = pd.context().create_cq(8).unwrap();
    let number = || pd.create_qp(&cq, &cq).max_send_wr(1).max_recv_wr(1).build().unwrap().qp_num();
    let numbers: HashSet<_> = (0..1000).map(|_| number()).collect();
    assert_eq!(numbers.len(), 1000);
}

#[test]
fn request_list_completes_in_order() {
    let Pair { alice, bob, .. } = pair(Service::Rc);
    let part = [alice.region.slice(..100).unwrap()];
    let remote = bob.region.remote();
    let list: Vec<_> = (0..10).map(|i| WorkRequest::write(&part, remote).wr_id(i).signaled()).collect();
    alice.qp.post_send_list(&list).unwrap();
    assert_eq!((0..10).map(|_| alice.wait_success().wr_id()).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
}

#[test]
fn type_1_window_rebinds_and_closes_with_its_region() {
    let Pair { pd, alice, bob } = pair(Service::Rc);
    let region = pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
    let window = pd.alloc_mw(WindowKind::Domain).unwrap();
    let open = |range: std::ops::Range<usize>| {
        let opened = window.bind(&region, range, Access::REMOTE_WRITE).unwrap();
        bob.qp.post_send(&WorkRequest::bind(&opened).signaled()).unwrap();
        bob.wait_success();
        opened.remote()
    };
    let first = open(0..8);
    let second = open(8..16);
    assert_ne!(first.rkey, second.rkey);
    alice.qp.post_send(&WorkRequest::write_inline(b"moved", second).signaled()).unwrap();
    alice.wait_success();
    assert_eq!(region.to_vec(8..13).unwrap(), b"moved");
    bob.qp.post_send(&window.close().signaled()).unwrap();
    bob.wait_success();
    let third = open(0..8);
    drop(region);
    alice.qp.post_send(&WorkRequest::write_inline(b"late", third).signaled()).unwrap();
    assert_eq!(alice.wait().status(), WcStatus::RemAccessErr);
}

#[test]
fn invalid_binding_error_names_the_reason() {
    let Pair { pd, alice, bob } = pair(Service::Rc);
    let window = pd.alloc_mw(WindowKind::QueuePair).unwrap();
    let outside = window.bind(&bob.region, 0..(1 << 16) + 1, Access::REMOTE_READ).unwrap_err();
    assert!(matches!(outside, Error::Argument(ArgumentError::OutOfRange { .. })), "{outside}");
    let not_bindable = window.bind(&bob.region, .., Access::REMOTE_READ).unwrap();
    bob.qp.post_send(&WorkRequest::bind(&not_bindable)).unwrap();
    let failed = bob.wait();
    assert_eq!((failed.status(), failed.opcode()), (WcStatus::MwBindErr, WcOpcode::BindWindow));
    assert!(failed.check().unwrap_err().to_string().contains("MW_BIND"));
    alice.qp.post_send(&window.close()).unwrap();
    assert_eq!(alice.wait().status(), WcStatus::MwBindErr, "it is not open");

    let Pair { alice, .. } = pair(Service::Ud);
    let refused = alice.qp.post_send(&window.close()).unwrap_err().to_string();
    assert!(refused.contains("memory windows need RC"), "{refused}");
}

#[test]
fn registered_file_is_accessed_without_a_mapping() {
    let Pair { pd, alice, bob } = pair(Service::Rc);
    let path = std::env::temp_dir().join(format!("roxe-dmabuf-{}", std::process::id()));
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(10_000).unwrap();
    let region = pd.register_dmabuf(&file, 5000, 5000, REMOTE).unwrap();
    alice.qp.post_send(&WorkRequest::write_inline(b"stored", region.remote().offset(10)).signaled()).unwrap();
    alice.wait_success();
    let mut stored = [0; 6];
    file.read_exact_at(&mut stored, 5010).unwrap();
    assert_eq!(&stored, b"stored");
    file.write_all_at(b"loaded", 9994).unwrap();
    let last = [region.slice(4994..).unwrap()];
    bob.qp.post_send(&WorkRequest::write(&last, alice.region.remote()).signaled()).unwrap();
    bob.wait_success();
    assert_eq!(alice.region.to_vec(..6).unwrap(), b"loaded");
    assert!(matches!(region.slice(4994..5001), Err(Error::Argument(ArgumentError::OutOfRange { .. }))));
    assert!(matches!(pd.register_dmabuf(&file, 5000, 5001, REMOTE), Err(Error::Argument(_))));
}

#[test]
fn null_region_reads_zeros() {
    let Pair { pd, alice, bob } = pair(Service::Rc);
    let null = pd.alloc_null_mr().unwrap();
    bob.region.write(0, &[9; 5000]).unwrap();
    let list = [null.slice(4000), alice.region.slice(..100).unwrap()];
    alice.qp.post_send(&WorkRequest::write(&list, bob.region.remote()).signaled()).unwrap();
    alice.wait_success();
    assert_eq!(bob.region.to_vec(..4100).unwrap(), [0; 4100]);
    assert_eq!(bob.region.load_u8(4100).unwrap(), 9);
}

#[test]
fn zero_based_region_starts_at_zero() {
    let Pair { pd, alice, bob: _peer } = pair(Service::Rc);
    let region = pd.alloc_mr(64, REMOTE | Access::ZERO_BASED).unwrap();
    region.write(8, b"own").unwrap();
    let own = [region.slice(8..11).unwrap()];
    assert_eq!((own[0].addr, region.remote().addr), (8, 0));
    alice.qp.post_send(&WorkRequest::write(&own, region.remote().offset(32)).signaled()).unwrap();
    alice.wait_success();
    assert_eq!(region.to_vec(32..35).unwrap(), b"own");
}

#[test]
fn wrong_rkey_is_refused_with_an_explanation() {
    let Pair { alice, bob, .. } = pair(Service::Rc);
    let mut remote = bob.region.remote();
    remote.rkey.0 ^= 0xff;
    alice.qp.post_send(&WorkRequest::write_inline(b"x", remote).wr_id(1).signaled()).unwrap();
    let failed = alice.wait();
    assert_eq!(failed.status(), WcStatus::RemAccessErr);
    let text = failed.check().unwrap_err().to_string();
    assert!(text.contains("wr_id 1") && text.contains("rkey"), "{text}");
    assert_eq!(alice.qp.state(), QpState::Err);
}

#[test]
fn dropped_region_fails_its_request_only() {
    let Pair { pd, alice, bob } = pair(Service::Rc);
    let gone = pd.alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
    let part = [gone.slice(..).unwrap()];
    drop(gone);
    alice.qp.post_send(&WorkRequest::write(&part, bob.region.remote()).signaled()).unwrap();
    assert_eq!(alice.wait().status(), WcStatus::LocProtErr);
}

#[test]
fn silent_peer_causes_retry_exceeded() {
    let Pair { alice, bob, .. } = pair(Service::Rc);
    drop(bob.qp);
    alice.qp.post_send(&WorkRequest::send_inline(b"x").signaled()).unwrap();
    let failed = alice.wait();
    assert_eq!(failed.status(), WcStatus::RetryExcErr);
    assert!(failed.check().unwrap_err().to_string().contains("4791"));
}

#[test]
fn refused_request_errors_have_reason_and_advice() {
    let pd = Context::open_first().unwrap().alloc_pd().unwrap();
    let cq = pd.context().create_cq(4).unwrap();
    let qp = pd.create_qp(&cq, &cq).max_recv_wr(1).max_inline_data(16).build().unwrap();
    let error = qp.post_send(&WorkRequest::send_inline(b"x")).unwrap_err();
    let refused = error.request().expect("the error is a refused request");
    assert_eq!((refused.source, refused.qp.map(|(_, state)| state)), (PostError::State, Some(QpState::Init)));
    assert!(error.to_string().contains("connect it first"), "{error}");
    assert_eq!(format!("{error:?}"), error.to_string(), "`main` prints the error with Debug");
    let remote = pd.alloc_mr(8, Access::empty()).unwrap().remote();
    let error = qp.post_send(&WorkRequest::read(&[], remote).imm(1)).unwrap_err();
    assert_eq!(error.request().map(|refused| refused.source), Some(PostError::BadOpcode), "{error}");

    let mut full = Ok(());
    for _ in 0..100_000 {
        full = qp.post_recv(0, &[]);
        if full.is_err() {
            break;
        }
    }
    assert!(matches!(full, Err(Error::Resources(ResourceError::QueueFull(_)))), "{full:?}");
    assert!(matches!(qp.activate(), Err(Error::Argument(ArgumentError::WrongService { .. }))));
}

#[test]
fn connecting_twice_is_refused() {
    let Pair { alice, bob, .. } = pair(Service::Rc);
    assert!(matches!(alice.qp.connect(&bob.qp.endpoint()), Err(Error::Argument(_))));
    let query = alice.qp.query();
    assert_eq!((query.state, query.dest_qpn, query.path_mtu), (QpState::Rts, bob.qp.qp_num(), PathMtu::Mtu4096));
}

#[test]
fn access_outside_a_region_is_rejected() {
    let pd = Context::open_first().unwrap().alloc_pd().unwrap();
    let region = pd.alloc_mr(100, Access::LOCAL_WRITE).unwrap();
    assert_eq!(region.slice(..).unwrap().length, 100);
    assert_eq!(region.slice(100..).unwrap().length, 0);
    assert!(region.write(96, b"four").is_ok());
    for error in [
        region.write(97, b"four").unwrap_err(),
        region.read(usize::MAX, &mut [0; 2]).unwrap_err(),
        region.slice(50..101).unwrap_err(),
        #[allow(clippy::reversed_empty_ranges)]
        region.slice(9..8).unwrap_err(),
        region.load_u64(4).unwrap_err(),
        region.load_u8(100).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Argument(ArgumentError::OutOfRange { region: 100, .. })), "{error}");
    }
}

#[test]
fn devices_are_found_by_name() {
    let devices = roxe::devices().unwrap();
    assert_eq!(devices.by_name("roxe0").unwrap().netdev(), "lo");
    let error = devices.by_name("mlx5_0").unwrap_err().to_string();
    assert!(error.contains("mlx5_0") && error.contains("roxe0"), "{error}");
}

/// Exchanges empty messages, until both ends delay acknowledgements because the program answers
/// every message at once.
fn exchange_messages(alice: &End, bob: &End) {
    for _ in 0..100 {
        for (from, to) in [(alice, bob), (bob, alice)] {
            to.qp.post_recv(1, &[]).unwrap();
            from.qp.post_send(&WorkRequest::send(&[])).unwrap();
            to.wait_success();
        }
    }
}

/// The acknowledgement of a message may be delayed until the program's answer, but must be sent
/// without one too. No retransmission requests it here, because the queue pairs have no timeout.
// clause: ACK-BEFORE-REQUESTS
#[test]
fn message_is_acknowledged_before_the_qp_ends() {
    let pd = Context::open_first().unwrap().alloc_pd().unwrap();
    let end = || {
        let cq = pd.context().create_cq(128).unwrap();
        let qp = pd.create_qp(&cq, &cq).timeout(0).build().unwrap();
        End { qp, cq, region: pd.alloc_mr(4096, REMOTE).unwrap() }
    };
    for is_destroyed in [false, true] {
        let (alice, bob) = (end(), end());
        alice.qp.connect(&bob.qp.endpoint()).unwrap();
        bob.qp.connect(&alice.qp.endpoint()).unwrap();
        exchange_messages(&alice, &bob);
        bob.qp.post_recv(2, &[]).unwrap();
        alice.qp.post_send(&WorkRequest::send(&[]).wr_id(3).signaled()).unwrap();
        assert_eq!(bob.wait_success().wr_id(), 2);
        if is_destroyed {
            drop(bob);
        }
        assert_eq!(alice.wait_success().wr_id(), 3);
    }
}

#[test]
fn empty_gid_index_is_an_argument_error() {
    let context = Context::open_first().unwrap();
    for entry in context.gid_entries() {
        assert_eq!(context.gid(entry.index).unwrap(), entry.gid);
    }
    for index in [9, 255] {
        let error = context.gid(index).unwrap_err();
        assert!(
            matches!(error, Error::Argument(ArgumentError::NoGid { index: named, .. }) if named == index),
            "{error}"
        );
        assert_eq!(error.errno(), libc::EINVAL);
    }
}
