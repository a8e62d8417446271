//! XRC requests: what a target asks other processes to execute for it, and the packets that wait
//! meanwhile.
//!
//! Bounded: packets that wait, and bytes of a piece. Touches the engine's outgoing XRC messages.
//! What is done with it is in [`super::xrc_target`].

use roxe_engine::engine::Engine;
use roxe_engine::xrc_messages::XrcMessage;
use roxe_net::forward::{Frame, XrcRequest, XrcRequestId, XrcRequestKind};
use roxe_net::slot::Slot;
use roxe_transport::cx::{MemError, TxRoom};
use roxe_transport::time::Instant;
use roxe_wire::{NetHeader, PathMtu, Psn, Qpn, RKey, Reth};
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes of packets that wait for one target; what comes beyond is lost, and the peer sends it
/// again.
const MAX_BYTES: usize = 4 << 20;
/// Bytes of a READ that are fetched at once, a multiple of every path MTU.
pub(crate) const MAX_FETCH: u32 = 32 << 10;
/// How soon an unanswered XRC request is asked for again; the pause doubles up to the second one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(80);
/// XRC requests after which a piece that was not used up is too old: PSNs are not unique for ever.
pub(super) const MAX_AGE: u64 = 1 << 20;

/// A request that waits.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) net: NetHeader,
    pub(super) psn: Psn,
    pub(super) bytes: Vec<u8>,
}

/// An XRC request that is under way.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) id: XrcRequestId,
    message: XrcMessage,
    again_at: Instant,
    pause: Duration,
}

impl Question {
    /// Asks for the first time.
    pub(super) fn ask(engine: &Engine, id: XrcRequestId, message: XrcMessage, now: Instant) -> Self {
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
pub(super) struct Piece {
    pub(super) question: Question,
    pub(super) srqn: u32,
    /// Of its first packet.
    pub(super) psn: Psn,
    pub(super) rkey: RKey,
    pub(super) va: u64,
    pub(super) len: u32,
    /// What came.
    pub(super) data: Option<Result<Vec<u8>, MemError>>,
}

impl Piece {
    /// Whether it has the `len` bytes at `rest` for the packet `psn`: no other READ has both PSN
    /// and address.
    pub(super) fn holds(&self, srqn: u32, psn: Psn, rest: &Reth, len: u32, mtu: PathMtu) -> bool {
        let offset = u64::from(psn.sub(self.psn.get()).get()) * u64::from(mtu.bytes());
        (self.srqn, self.rkey) == (srqn, rest.rkey)
            && rest.va == self.va.wrapping_add(offset)
            && offset + u64::from(len) <= u64::from(self.len)
    }

    /// Copies out of it. Whether that was all of it.
    pub(super) fn read(&self, va: u64, out: TxRoom<'_>) -> Result<bool, MemError> {
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
pub(super) struct XrcRequests {
    epoch: u64,
    pub(super) seq: u64,
    /// The first one is being executed.
    pub(super) held: VecDeque<Held>,
    pub(super) bytes: usize,
    pub(super) asked: Option<Question>,
    pub(super) piece: Option<Piece>,
    /// Who was asked last: a message may be open there.
    pub(super) last: Option<(Slot, XrcRequest)>,
    pub(super) mtu: PathMtu,
}

impl XrcRequests {
    /// None yet, of a connection with packets of `mtu`.
    pub(super) fn new(mtu: PathMtu) -> Self {
        // Two connections with the same number are only told apart by it if they come right after
        // each other.
        let epoch = getrandom::u64().unwrap_or(0);
        Self { epoch, seq: 0, held: VecDeque::new(), bytes: 0, asked: None, piece: None, last: None, mtu }
    }

    /// Names the next one.
    pub(super) fn next_id(&mut self, target: Qpn) -> XrcRequestId {
        self.seq += 1;
        XrcRequestId { target, epoch: self.epoch, seq: self.seq }
    }

    /// Lets a request wait behind the others, unless it waits already.
    pub(super) fn hold_back(&mut self, net: &NetHeader, psn: Psn, bytes: &[u8]) {
        let is_new = self.held.back().is_none_or(|last| psn.is_after(last.psn));
        if is_new && self.bytes + bytes.len() <= MAX_BYTES {
            self.bytes += bytes.len();
            self.held.push_back(Held { net: *net, psn, bytes: bytes.to_vec() });
        }
    }

    /// The request that has waited longest.
    pub(super) fn pop(&mut self) -> Option<Held> {
        let held = self.held.pop_front()?;
        self.bytes -= held.bytes.len();
        Some(held)
    }

    fn questions(&mut self) -> impl Iterator<Item = &mut Question> {
        let piece = self.piece.as_mut().filter(|piece| piece.data.is_none());
        self.asked.as_mut().into_iter().chain(piece.map(|piece| &mut piece.question))
    }

    /// When [`XrcRequests::ask_again`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let piece = self.piece.as_ref().filter(|piece| piece.data.is_none()).map(|piece| piece.question.again_at);
        self.asked.as_ref().map(|question| question.again_at).into_iter().chain(piece).min()
    }

    /// Repeats what nobody has answered.
    pub(super) fn ask_again(&mut self, engine: &Engine, now: Instant) {
        for question in self.questions() {
            question.ask_again(engine, now);
        }
    }

    /// The connection has ended: what is open at another process ends too.
    pub(super) fn end(mut self, engine: &Engine) {
        if let Some((to, last)) = self.last.take() {
            let id = self.next_id(last.id.target);
            let frame = Frame::XrcRequest(XrcRequest { kind: XrcRequestKind::End, id, ..last });
            engine.post(XrcMessage { to, frame, body: vec![] });
        }
    }
}
