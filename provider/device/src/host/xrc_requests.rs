//! XRC requests: requests that reach an XRC target here but name a shared queue of another process.
//!
//! Processes that opened one file share its domain. The number of a queue begins with a slot of its process, which thus is
//! known without asking. The target holds such a request, and all behind it, without an answer, and asks that process to
//! execute it (`roxe_transport::qp::Outcome`); when the result is here it goes on. One request at a time is under way; the
//! process of the queue executes each number once, so asking again, after a message between processes was lost, does no
//! harm. If that process is gone, so is its queue. The data of READs is fetched piece by piece when its answer is sent.
//!
//! Bounded: packets that wait, and bytes of a piece. Touches the engine's outgoing XRC messages.

use super::{Path, QpHost};
use roxe_engine::engine::Engine;
use roxe_engine::xrc_messages::XrcMessage;
use roxe_net::forward::{Frame, XrcRequest, XrcRequestId, XrcRequestKind};
use roxe_net::slot::Slot;
use roxe_transport::Qp as Machine;
use roxe_transport::cx::{MemError, SharedReceives, SrqPlace, TxRoom};
use roxe_transport::qp::{DropReason, Outcome};
use roxe_transport::time::Instant;
use roxe_wire::{Kind, NetHeader, Packet, PathMtu, Psn, Qpn, RKey, Reth};
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes of packets that wait for one target; what comes beyond is lost, and the peer sends it again.
const MAX_BYTES: usize = 4 << 20;
/// Bytes of a READ that are fetched at once, a multiple of every path MTU.
pub(crate) const MAX_FETCH: u32 = 32 << 10;
/// How soon an unanswered XRC request is asked for again; the pause doubles up to the second one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(80);
/// XRC requests after which a piece that was not used up is too old: PSNs are not unique for ever.
const MAX_AGE: u64 = 1 << 20;

/// A request that waits.
#[derive(Debug)]
struct Held {
    net: NetHeader,
    psn: Psn,
    bytes: Vec<u8>,
}

/// An XRC request that is under way.
#[derive(Debug)]
struct Question {
    id: XrcRequestId,
    message: XrcMessage,
    again_at: Instant,
    pause: Duration,
}

impl Question {
    fn ask(engine: &Engine, id: XrcRequestId, message: XrcMessage, now: Instant) -> Self {
        engine.post(message.clone());
        Self { id, message, again_at: now.after(FIRST_PAUSE), pause: FIRST_PAUSE }
    }

    fn ask_again(&mut self, engine: &Engine, now: Instant) {
        if self.again_at <= now {
            engine.post(self.message.clone());
            self.pause = (self.pause * 2).min(LAST_PAUSE);
            self.again_at = now.after(self.pause);
        }
    }
}

/// A piece of the answer to a READ, from memory of another process.
#[derive(Debug)]
struct Piece {
    question: Question,
    srqn: u32,
    /// Of its first packet.
    psn: Psn,
    rkey: RKey,
    va: u64,
    len: u32,
    /// What came.
    data: Option<Result<Vec<u8>, MemError>>,
}

impl Piece {
    /// Whether it has the `len` bytes at `rest` for the packet `psn`: no other READ has both PSN and address.
    fn holds(&self, srqn: u32, psn: Psn, rest: &Reth, len: u32, mtu: PathMtu) -> bool {
        let offset = u64::from(psn.sub(self.psn.get()).get()) * u64::from(mtu.bytes());
        (self.srqn, self.rkey) == (srqn, rest.rkey)
            && rest.va == self.va.wrapping_add(offset)
            && offset + u64::from(len) <= u64::from(self.len)
    }

    /// Copies out of it. Whether that was all of it.
    fn read(&self, va: u64, out: TxRoom<'_>) -> Result<bool, MemError> {
        let Some(Ok(data)) = &self.data else { return Err(MemError::BadKey) };
        let at = va.checked_sub(self.va).and_then(|at| usize::try_from(at).ok()).ok_or(MemError::Range)?;
        let data = data.get(at..).ok_or(MemError::Range)?;
        let is_all = data.len() == out.len();
        data.get(..out.len()).and_then(|data| out.put(data)).ok_or(MemError::Range)?;
        Ok(is_all)
    }
}

/// The XRC requests of one connection.
#[derive(Debug)]
pub(super) struct Errands {
    epoch: u64,
    seq: u64,
    /// The first one is being executed.
    held: VecDeque<Held>,
    bytes: usize,
    asked: Option<Question>,
    piece: Option<Piece>,
    /// Who was asked last: a message may be open there.
    last: Option<(Slot, XrcRequest)>,
    mtu: PathMtu,
}

impl Errands {
    fn new(mtu: PathMtu) -> Self {
        // Two connections with the same number are only told apart by it if they come right after each other.
        let epoch = getrandom::u64().unwrap_or(0);
        Self { epoch, seq: 0, held: VecDeque::new(), bytes: 0, asked: None, piece: None, last: None, mtu }
    }

    fn next_id(&mut self, target: Qpn) -> XrcRequestId {
        self.seq += 1;
        XrcRequestId { target, epoch: self.epoch, seq: self.seq }
    }

    /// Lets a request wait behind the others, unless it waits already.
    fn hold_back(&mut self, net: &NetHeader, psn: Psn, bytes: &[u8]) {
        let is_new = self.held.back().is_none_or(|last| psn.is_after(last.psn));
        if is_new && self.bytes + bytes.len() <= MAX_BYTES {
            self.bytes += bytes.len();
            self.held.push_back(Held { net: *net, psn, bytes: bytes.to_vec() });
        }
    }

    fn pop(&mut self) -> Option<Held> {
        let held = self.held.pop_front()?;
        self.bytes -= held.bytes.len();
        Some(held)
    }

    fn questions(&mut self) -> impl Iterator<Item = &mut Question> {
        let piece = self.piece.as_mut().filter(|piece| piece.data.is_none());
        self.asked.as_mut().into_iter().chain(piece.map(|piece| &mut piece.question))
    }
}

impl Path {
    /// When [`Path::ask_again`] has something to do.
    pub(crate) fn xrc_requests_deadline(&self) -> Option<Instant> {
        let xrc_requests = self.xrc_requests.as_deref()?;
        let piece =
            xrc_requests.piece.as_ref().filter(|piece| piece.data.is_none()).map(|piece| piece.question.again_at);
        xrc_requests.asked.as_ref().map(|question| question.again_at).into_iter().chain(piece).min()
    }

    /// Repeats what nobody has answered.
    pub(crate) fn ask_again(&mut self, engine: &Engine, now: Instant) {
        for question in self.xrc_requests.iter_mut().flat_map(|xrc_requests| xrc_requests.questions()) {
            question.ask_again(engine, now);
        }
    }

    /// Whether other processes did something for this connection.
    pub(crate) fn has_xrc_requests(&self) -> bool {
        self.xrc_requests.is_some()
    }

    /// The connection has ended: what is open at another process ends too.
    pub(crate) fn end_xrc_requests(&mut self, engine: &Engine) {
        let Some(mut xrc_requests) = self.xrc_requests.take() else { return };
        if let Some((to, last)) = xrc_requests.last.take() {
            let id = xrc_requests.next_id(last.id.target);
            let frame = Frame::XrcRequest(XrcRequest { kind: XrcRequestKind::End, id, ..last });
            engine.post(XrcMessage { to, frame, body: vec![] });
        }
    }
}

impl QpHost<'_> {
    /// Takes a request that has to wait for another process. False: it has not, hand it in.
    pub(crate) fn hold(&mut self, machine: &Machine, net: &NetHeader, packet: &Packet<'_>, bytes: &[u8]) -> bool {
        if !matches!(packet.header.kind, Kind::XrcRequest(..)) {
            return false;
        }
        let psn = packet.header.bth.psn;
        if let Some(xrc_requests) = &mut self.path.xrc_requests
            && let Some(front) = xrc_requests.held.front()
        {
            let is_ours = (net.src, net.dst) == (front.net.src, front.net.dst) && !psn.is_before(front.psn);
            if is_ours {
                xrc_requests.hold_back(net, psn, bytes);
            }
            return is_ours;
        }
        let Some(to) = self.find_elsewhere(machine, net, packet) else { return false };
        self.send_errand(machine, to, Held { net: *net, psn, bytes: bytes.to_vec() });
        true
    }

    /// The result of an XRC request is here: goes on with what waits.
    pub(crate) fn take_result(
        &mut self,
        machine: &mut Machine,
        (id, outcome, body): (XrcRequestId, Outcome, &[u8]),
        mut count: impl FnMut(Result<(), DropReason>),
    ) {
        let Some(xrc_requests) = &mut self.path.xrc_requests else { return };
        if let Some(piece) = xrc_requests.piece.as_mut().filter(|piece| piece.question.id == id) {
            let is_whole = matches!(outcome, Outcome::Done(_)) && body.len() == piece.len as usize;
            piece.data = Some(if is_whole { Ok(body.to_vec()) } else { Err(MemError::BadKey) });
            return;
        }
        if xrc_requests.asked.as_ref().is_none_or(|question| question.id != id) {
            return;
        }
        xrc_requests.asked = None;
        if let Some(held) = xrc_requests.pop()
            && let Ok(packet) = Packet::parse(&held.bytes)
        {
            count(machine.handle_executed(self, &held.net, &packet, outcome));
        }
        while let Some(held) = self.path.xrc_requests.as_mut().and_then(|xrc_requests| xrc_requests.pop()) {
            let Ok(packet) = Packet::parse(&held.bytes) else { continue };
            if let Some(to) = self.find_elsewhere(machine, &held.net, &packet) {
                return self.send_errand(machine, to, held);
            }
            count(machine.handle_packet(self, &held.net, &packet));
        }
    }

    /// The process that must execute `packet`, and the queue.
    fn find_elsewhere(&self, machine: &Machine, net: &NetHeader, packet: &Packet<'_>) -> Option<(Slot, u32)> {
        let srqn = machine.next_request_for(net, packet)?;
        Some((self.qp.xrcd()?.elsewhere(srqn)?, srqn))
    }

    /// Asks for the execution of `held`, which goes to the front of what waits.
    fn send_errand(&mut self, machine: &Machine, (to, srqn): (Slot, u32), held: Held) {
        let Some(file) = self.qp.xrcd().and_then(|xrcd| xrcd.file()) else { return };
        let mtu = machine.attr().path_mtu;
        let xrc_requests = self.path.xrc_requests.get_or_insert_with(|| Box::new(Errands::new(mtu)));
        let (id, kind) = (xrc_requests.next_id(machine.qpn()), XrcRequestKind::Execute(mtu));
        let request = XrcRequest { kind, id, srqn, file };
        let body = [&held.net.src.0[..], &held.net.dst.0, &held.bytes].concat();
        let message = XrcMessage { to, frame: Frame::XrcRequest(request), body };
        xrc_requests.asked = Some(Question::ask(self.qp.engine(), id, message, self.now));
        xrc_requests.last = Some((to, request));
        xrc_requests.bytes += held.bytes.len();
        xrc_requests.held.push_front(held);
    }

    /// Whether the next bytes of the answer to a READ are here; asks for them if they are in another process.
    pub(super) fn fetch(&mut self, srqn: u32, psn: Psn, rest: &Reth, len: u32) -> bool {
        if self.select_srq(srqn) != SrqPlace::Elsewhere || len == 0 {
            return true;
        }
        let (Some(to), Some(xrc_requests)) = (self.elsewhere, &mut self.path.xrc_requests) else { return true };
        let (mtu, oldest) = (xrc_requests.mtu, xrc_requests.seq.saturating_sub(MAX_AGE));
        let piece = xrc_requests.piece.as_ref().filter(|piece| piece.question.id.seq >= oldest);
        if let Some(piece) = piece.filter(|piece| piece.holds(srqn, psn, rest, len, mtu)) {
            return piece.data.is_some();
        }
        let Some(file) = self.qp.xrcd().and_then(|xrcd| xrcd.file()) else { return true };
        let (id, piece_len) = (xrc_requests.next_id(self.qp.qpn()), rest.dma_len.min(MAX_FETCH));
        let frame = Frame::XrcRequest(XrcRequest { kind: XrcRequestKind::Read, id, srqn, file });
        let body = [&rest.rkey.0.to_ne_bytes()[..], &piece_len.to_ne_bytes(), &rest.va.to_ne_bytes()].concat();
        let question = Question::ask(self.qp.engine(), id, XrcMessage { to, frame, body }, self.now);
        let (rkey, va) = (rest.rkey, rest.va);
        xrc_requests.piece = Some(Piece { question, srqn, psn, rkey, va, len: piece_len, data: None });
        false
    }

    /// Copies out of what was fetched.
    pub(super) fn read_fetched(&mut self, va: u64, out: TxRoom<'_>) -> Result<(), MemError> {
        let xrc_requests = self.path.xrc_requests.as_mut().ok_or(MemError::BadKey)?;
        let read = xrc_requests.piece.as_ref().map_or(Err(MemError::BadKey), |piece| piece.read(va, out));
        // What is used up, or failed, is asked for anew the next time.
        if !matches!(read, Ok(false)) {
            xrc_requests.piece = None;
        }
        read.map(drop)
    }
}
