//! A target of this process, and an owner of queues that is only a mailbox: the test reads it and
//! answers, or does not.

use super::*;
use crate::cq::{Cq, CqInit};
use crate::qp::{Qp, QpInit};
use crate::testing::{self, PAGE, Pages};
use crate::xrcd::XrcdInit;
use roxe_net::forward::XrcRequestId;
use roxe_net::slot::SlotSocket;
use roxe_transport::qp::{QpAttr, QpCaps, QpEvents, QpState, Service};
use roxe_transport::wr::{Access, Av, SendData, SendFlags, SendOp, SendRequest, Sge, WcStatus};
use roxe_wire::{NakCode, PathMtu, Qpn};
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Data of 64 KB is fetched in two pieces.
const PAGES: u64 = 16;
const RKEY: RKey = RKey(0x1234);

/// An initiator, its target, and the mailbox of a process that is not there.
struct Scene {
    owner: SlotSocket,
    ini: Arc<Qp>,
    target: Arc<Qp>,
    cq: Arc<Cq>,
    pages: Pages,
    sge: Sge,
    buf: Vec<u8>,
    _name: File,
}

/// A file that is gone when it is closed.
fn unnamed_file() -> File {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("roxe-xrc_messages-{}-{number}", std::process::id()));
    let file = File::create(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

fn connect(qp: &Qp, dest: Qpn) {
    let loopback = Ipv4Addr::LOCALHOST.into();
    let av = Av { sgid: loopback, dgid: loopback, hop_limit: 64, ..Av::default() };
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let init = QpAttr { state: QpState::Init, port: 1, access, ..QpAttr::default() };
    let rtr = QpAttr { state: QpState::Rtr, av, dest_qpn: dest, path_mtu: PathMtu::Mtu1024, ..init };
    let rtr = QpAttr { max_dest_rd_atomic: 4, min_rnr_timer: 1, ..rtr };
    // The timer of the peer does not help: what is lost between processes is asked for again by the
    // target alone.
    let rts = QpAttr { state: QpState::Rts, timeout: 0, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 4, ..rtr };
    testing::connect(qp, [init, rtr, rts]);
}

impl Scene {
    fn new() -> Self {
        let (pd, pages) = (testing::pd(), Pages::new(PAGES));
        let context = pd.context();
        let name = unnamed_file();
        let init = XrcdInit { file: Some(name.as_fd()), create: true, exclusive: true };
        let xrcd = context.open_xrcd(init).unwrap();
        let cq = context.create_cq(CqInit { cqe: 16, ..CqInit::default() }).unwrap();
        let caps = QpCaps { max_send_wr: 8, max_send_sge: 1, ..QpCaps::default() };
        let (send_cq, recv_cq, service) = (Arc::clone(&cq), Arc::clone(&cq), Service::XrcIni);
        let init = QpInit { service, caps, sq_sig_all: false, send_cq, recv_cq, srq: None, user: 0 };
        let (ini, target) = (pd.create_qp(init).unwrap(), xrcd.create_target(0).unwrap());
        connect(&ini, target.qpn());
        connect(&target, ini.qpn());
        let mr = pd.register(pages.addr(), PAGES * PAGE, pages.addr(), Access::LOCAL_WRITE).unwrap();
        let sge = Sge { addr: pages.addr(), length: (PAGES * PAGE) as u32, lkey: mr.lkey() };
        // The region stays as long as the test.
        std::mem::forget(mr);
        let owner = SlotSocket::claim(context.device().ifindex()).unwrap();
        Self { owner, ini, target, cq, pages, sge, buf: vec![0; 70_000], _name: name }
    }

    fn push(&self, op: SendOp, length: u32) {
        let sges = [Sge { length, ..self.sge }];
        let data = SendData::Sges(&sges);
        let request = SendRequest { wr_id: 1, op, flags: SendFlags::SIGNALED, data, ud: None };
        self.ini.send().push_to_srq(self.owner.slot().qpn(5).get(), &request).unwrap();
    }

    /// The next XRC request in the mailbox.
    fn hear(&mut self) -> (XrcRequest, Vec<u8>) {
        loop {
            assert_eq!(self.cq.poll(1, |_| ()).unwrap(), 0, "nobody has answered");
            let Some(len) = self.owner.recv(&mut self.buf).unwrap() else { continue };
            let (frame, body) = Frame::parse(&self.buf[..len.0]).unwrap();
            let Frame::XrcRequest(request) = frame else { panic!("{frame:?}") };
            return (request, body.to_vec());
        }
    }

    /// The next one that is not `old`: that may have been asked again before its answer came.
    fn hear_after(&mut self, old: &(XrcRequest, Vec<u8>)) -> (XrcRequest, Vec<u8>) {
        loop {
            let heard = self.hear();
            if heard != *old {
                return heard;
            }
        }
    }

    fn answer(&self, id: XrcRequestId, outcome: Outcome, body: &[u8]) {
        let header = Frame::Result(id, outcome).header();
        self.owner.send(Slot::of(self.target.qpn()), &header, body).unwrap();
    }

    fn wait(&self) -> WcStatus {
        let mut status = None;
        while status.is_none() {
            self.cq.poll(1, |cqe| status = Some(cqe.status)).unwrap();
        }
        status.unwrap()
    }

    fn bytes(&self) -> Vec<u8> {
        (0..PAGES * PAGE / 8).flat_map(|n| testing::load(self.pages.addr() + 8 * n).to_ne_bytes()).collect()
    }
}

// clause: XRC-PROCESSES
#[test]
fn lost_questions_are_asked_again_and_wrong_answers_mean_nothing() {
    let mut scene = Scene::new();
    scene.push(SendOp::Send, 100);
    let asked = scene.hear();
    let (first, _) = asked;
    assert!(matches!(first.kind, XrcRequestKind::Execute(PathMtu::Mtu1024)));
    assert_eq!((first.id.target, first.srqn), (scene.target.qpn(), scene.owner.slot().qpn(5).get()));
    for wrong in [
        XrcRequestId { epoch: first.id.epoch ^ 1, ..first.id },
        XrcRequestId { seq: first.id.seq + 1, ..first.id },
        XrcRequestId { target: scene.ini.qpn(), ..first.id },
    ] {
        scene.answer(wrong, Outcome::NO_QUEUE, b"");
    }
    assert_eq!((scene.hear(), scene.hear()), (asked.clone(), asked.clone()));
    scene.answer(first.id, Outcome::Done(0), b"");
    assert_eq!(scene.wait(), WcStatus::Success);
    // The answer comes once more, when the next question waits.
    scene.push(SendOp::Send, 100);
    let next = scene.hear_after(&asked);
    let (second, _) = next;
    assert!(second.id.seq > first.id.seq);
    scene.answer(first.id, Outcome::NO_QUEUE, b"");
    scene.answer(second.id, Outcome::Refused(NakCode::RemoteAccess, QpEvents::ACCESS_ERR), b"");
    assert_eq!(scene.wait(), WcStatus::RemAccessErr);
    assert!(matches!(scene.hear_after(&next).0, XrcRequest { kind: XrcRequestKind::End, .. }));
}

// clause: XRC-PROCESSES
#[test]
fn the_answer_to_a_read_is_fetched_in_pieces() {
    let mut scene = Scene::new();
    let data: Vec<u8> = (0..PAGES * PAGE).map(|n| (n / 7) as u8).collect();
    scene.push(SendOp::Read { remote_addr: 1000, rkey: RKEY }, data.len() as u32);
    let mut last = scene.hear();
    scene.answer(last.0.id, Outcome::Done(0), b"");
    for (at, piece) in data.chunks(data.len() / 2).enumerate() {
        last = scene.hear_after(&last);
        let (request, body) = &last;
        assert_eq!(request.kind, XrcRequestKind::Read);
        let va = 1000 + (at * piece.len()) as u64;
        assert_eq!(range(body), Some((RKEY, piece.len() as u32, va)));
        assert_eq!(scene.hear(), last, "lost");
        scene.answer(last.0.id, Outcome::Done(0), piece);
    }
    assert_eq!(scene.wait(), WcStatus::Success);
    assert!(scene.bytes() == data);
    scene.push(SendOp::Read { remote_addr: 0, rkey: RKEY }, 100);
    let asked = scene.hear_after(&last);
    scene.answer(asked.0.id, Outcome::Done(0), b"");
    let (request, _) = scene.hear_after(&asked);
    scene.answer(request.id, Outcome::Done(0), b"too short");
    assert_eq!(scene.wait(), WcStatus::RemAccessErr);
}

// clause: XRC-QUEUE-KNOWN
#[test]
fn an_owner_that_goes_without_an_answer_takes_its_queues_along() {
    let mut scene = Scene::new();
    scene.push(SendOp::Send, 100);
    scene.hear();
    let nobody = SlotSocket::claim(0x7000_0031).unwrap();
    drop(std::mem::replace(&mut scene.owner, nobody));
    assert_eq!(scene.wait(), WcStatus::RemInvReqErr);
}
