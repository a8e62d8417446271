//! XRC requests: requests that reach an XRC target here but name a shared queue of another process.
//!
//! Processes that opened one file share its domain. The number of a queue begins with a slot of its
//! process, which thus is known without asking. The target holds such a request, and all behind it,
//! without an answer, and asks that process to execute it (`roxe_transport::qp::Outcome`); when the
//! result is here it goes on. One request at a time is under way; the process of the queue executes
//! each number once, so asking again, after a message between processes was lost, does no harm. If
//! that process is gone, so is its queue. The data of READs is fetched piece by piece when its
//! answer is sent.
//!
//! Touches the engine's outgoing XRC messages. What is remembered from visit to visit is in
//! [`super::xrc_requests`].

use super::host::QpHost;
use super::xrc_requests::{Held, MAX_AGE, MAX_FETCH, Piece, Question, XrcRequests};
use roxe_engine::xrc_messages::XrcMessage;
use roxe_net::forward::{Frame, XrcRequest, XrcRequestId, XrcRequestKind};
use roxe_net::slot::Slot;
use roxe_transport::Qp as Machine;
use roxe_transport::cx::{MemError, SharedReceives, SrqPlace, TxRoom};
use roxe_transport::qp::{DropReason, Outcome};
use roxe_wire::{Kind, NetHeader, Packet, Psn, Reth};

impl QpHost<'_> {
    /// Takes a request that has to wait for another process. False: it has not, hand it in.
    pub(super) fn hold(&mut self, machine: &Machine, net: &NetHeader, packet: &Packet<'_>, bytes: &[u8]) -> bool {
        if !matches!(packet.header.kind, Kind::XrcRequest(..)) {
            return false;
        }
        let psn = packet.header.bth.psn;
        if let Some(xrc_requests) = &mut self.state.xrc_requests
            && let Some(front) = xrc_requests.held.front()
        {
            let is_ours = (net.src, net.dst) == (front.net.src, front.net.dst) && !psn.is_before(front.psn);
            if is_ours {
                xrc_requests.hold_back(net, psn, bytes);
            }
            return is_ours;
        }
        let Some(to) = self.find_elsewhere(machine, net, packet) else { return false };
        self.send_xrc_request(machine, to, Held { net: *net, psn, bytes: bytes.to_vec() });
        true
    }

    /// The result of an XRC request is here: goes on with what waits.
    pub(super) fn take_result(
        &mut self,
        machine: &mut Machine,
        (id, outcome, body): (XrcRequestId, Outcome, &[u8]),
        mut count: impl FnMut(Result<(), DropReason>),
    ) {
        let Some(xrc_requests) = &mut self.state.xrc_requests else { return };
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
        while let Some(held) = self.state.xrc_requests.as_mut().and_then(|xrc_requests| xrc_requests.pop()) {
            let Ok(packet) = Packet::parse(&held.bytes) else { continue };
            if let Some(to) = self.find_elsewhere(machine, &held.net, &packet) {
                return self.send_xrc_request(machine, to, held);
            }
            count(machine.handle_packet(self, &held.net, &packet));
        }
    }

    /// The process that must execute `packet`, and the queue.
    fn find_elsewhere(&self, machine: &Machine, net: &NetHeader, packet: &Packet<'_>) -> Option<(Slot, u32)> {
        let srqn = machine.next_request_for(net, packet)?;
        Some((self.qp.xrc_domain.as_ref()?.elsewhere(srqn, self.qp.engine())?, srqn))
    }

    /// Asks for the execution of `held`, which goes to the front of what waits.
    fn send_xrc_request(&mut self, machine: &Machine, (to, srqn): (Slot, u32), held: Held) {
        let Some(file) = self.qp.xrc_domain.as_ref().and_then(|domain| domain.file()) else { return };
        let mtu = machine.attr().path_mtu;
        let xrc_requests = self.state.xrc_requests.get_or_insert_with(|| Box::new(XrcRequests::new(mtu)));
        let (id, kind) = (xrc_requests.next_id(machine.qpn()), XrcRequestKind::Execute(mtu));
        let request = XrcRequest { kind, id, srqn, file };
        let body = [&held.net.src.0[..], &held.net.dst.0, &held.bytes].concat();
        let message = XrcMessage { to, frame: Frame::XrcRequest(request), body };
        xrc_requests.asked = Some(Question::ask(self.qp.engine(), id, message, self.now));
        xrc_requests.last = Some((to, request));
        xrc_requests.bytes += held.bytes.len();
        xrc_requests.held.push_front(held);
    }

    /// Whether the next bytes of the answer to a READ are here; asks for them if they are in
    /// another process.
    pub(super) fn fetch(&mut self, srqn: u32, psn: Psn, rest: &Reth, len: u32) -> bool {
        if self.select_srq(srqn) != SrqPlace::Elsewhere || len == 0 {
            return true;
        }
        let (Some(to), Some(xrc_requests)) = (self.elsewhere, &mut self.state.xrc_requests) else { return true };
        let (mtu, oldest) = (xrc_requests.mtu, xrc_requests.seq.saturating_sub(MAX_AGE));
        let piece = xrc_requests.piece.as_ref().filter(|piece| piece.question.id.seq >= oldest);
        if let Some(piece) = piece.filter(|piece| piece.holds(srqn, psn, rest, len, mtu)) {
            return piece.data.is_some();
        }
        let Some(file) = self.qp.xrc_domain.as_ref().and_then(|domain| domain.file()) else { return true };
        let (id, piece_len) = (xrc_requests.next_id(self.qp.qpn), rest.dma_len.min(MAX_FETCH));
        let frame = Frame::XrcRequest(XrcRequest { kind: XrcRequestKind::Read, id, srqn, file });
        let body = [&rest.rkey.0.to_ne_bytes()[..], &piece_len.to_ne_bytes(), &rest.va.to_ne_bytes()].concat();
        let question = Question::ask(self.qp.engine(), id, XrcMessage { to, frame, body }, self.now);
        let (rkey, va) = (rest.rkey, rest.va);
        xrc_requests.piece = Some(Piece { question, srqn, psn, rkey, va, len: piece_len, data: None });
        false
    }

    /// Copies out of what was fetched.
    pub(super) fn read_fetched(&mut self, va: u64, out: TxRoom<'_>) -> Result<(), MemError> {
        let xrc_requests = self.state.xrc_requests.as_mut().ok_or(MemError::BadKey)?;
        let read = xrc_requests.piece.as_ref().map_or(Err(MemError::BadKey), |piece| piece.read(va, out));
        // What is used up, or failed, is asked for anew the next time.
        if !matches!(read, Ok(false)) {
            xrc_requests.piece = None;
        }
        read.map(drop)
    }
}
