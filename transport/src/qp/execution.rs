//! What a request that passed every check does: change memory, end a receive, leave an answer.
//!
//! May touch the receive queue, [`Shared`] and the host. Only memory can still refuse.

use crate::cx::{AtomicOp, Host, RxPayload};
use crate::qp::refusal::Refusal;
use crate::qp::replay::{OnceKind, Op};
use crate::qp::request_rules::{Open, OpenWrite};
use crate::qp::responder::{Incoming, Responder};
use crate::qp::segment::len_of;
use crate::qp::shared::Shared;
use crate::wr::{Access, Cqe, WcExtra, WcOpcode};
use roxe_wire::{AtomicEth, Bth, Feth, ImmDt, Request, Reth, Selectivity, SendTail};

impl Responder {
    /// Does what the request asks for. Only memory can still refuse.
    pub(super) fn execute<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        incoming: Incoming<'_>,
    ) -> Result<(), Refusal> {
        let Incoming { bth, req, payload } = incoming;
        match req {
            Request::SendFirst | Request::SendMiddle => self.place_send(host, payload)?,
            Request::SendLast(tail) | Request::SendOnly(tail) => {
                self.place_send(host, payload)?;
                self.finish_send(sh, host, bth, tail)?;
            }
            Request::WriteFirst(reth) => self.place_write(host, OpenWrite::new(reth), payload)?,
            Request::WriteOnly(reth, imm) => {
                self.place_write(host, OpenWrite::new(reth), payload)?;
                self.finish_write(sh, host, bth, *imm);
            }
            Request::WriteMiddle => self.continue_write(host, payload)?,
            Request::WriteLast(imm) => {
                self.continue_write(host, payload)?;
                self.finish_write(sh, host, bth, *imm);
            }
            Request::Read(reth) => self.remember(sh, bth, req, Op::Read(*reth)),
            Request::CompareSwap(eth) => {
                // clause: ATOMIC-RESULT
                let op = AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_or_add };
                let original = atomic(host, eth, op)?;
                self.remember(sh, bth, req, Op::Once(OnceKind::CompareSwap, original));
            }
            Request::FetchAdd(eth) => {
                let original = atomic(host, eth, AtomicOp::FetchAdd { add: eth.swap_or_add })?;
                self.remember(sh, bth, req, Op::Once(OnceKind::FetchAdd, original));
            }
            Request::AtomicWrite(reth) => {
                store(host, reth, payload)?;
                self.remember(sh, bth, req, Op::Once(OnceKind::AtomicWrite, 0));
            }
            Request::Flush(feth, reth) => {
                flush(host, feth, reth)?;
                self.remember(sh, bth, req, Op::Once(OnceKind::Flush, 0));
            }
        }
        Ok(())
    }

    pub(super) fn place_send<H: Host>(&mut self, host: &mut H, payload: RxPayload<'_>) -> Result<(), Refusal> {
        let received = if let Open::Send(received) = self.open { received } else { 0 };
        self.rq.scatter(host, received, payload).map_err(|_| Refusal::LocalProtection)?;
        self.open = Open::Send(received.saturating_add(len_of(payload.len())));
        Ok(())
    }

    /// The key goes after the data is placed and before the application hears of it (IBA §9.4.1).
    fn finish_send<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        bth: &Bth,
        tail: &SendTail,
    ) -> Result<(), Refusal> {
        let extra = match tail {
            SendTail::Plain => WcExtra::None,
            SendTail::Imm(imm) => WcExtra::Imm(*imm),
            SendTail::Invalidate(ieth) => {
                // clause: INVALIDATE-KEY
                host.invalidate_remote(ieth.0).map_err(|_| Refusal::Invalidate)?;
                WcExtra::Invalidated(ieth.0)
            }
        };
        let byte_len = if let Open::Send(received) = self.open { self.rq.landed(received) } else { 0 };
        self.open = Open::None;
        let opcode = WcOpcode::Recv;
        let cqe = Cqe { opcode, byte_len, extra, solicited: bth.solicited, ..Cqe::default() };
        self.complete_receive(sh, host, cqe);
        Ok(())
    }

    // clause: NAK-DATA-STAYS
    fn continue_write<H: Host>(&mut self, host: &mut H, payload: RxPayload<'_>) -> Result<(), Refusal> {
        let Open::Write(write) = self.open else { return Err(Refusal::OpcodeSequence) };
        self.place_write(host, write, payload)
    }

    /// Memory checks the key again for every packet: it may have gone since the first.
    pub(super) fn place_write<H: Host>(
        &mut self,
        host: &mut H,
        write: OpenWrite,
        payload: RxPayload<'_>,
    ) -> Result<(), Refusal> {
        if !payload.is_empty() {
            // clause: CHECK-KEY-AGAIN
            host.write_remote(write.rkey, write.va, payload).map_err(Refusal::remote)?;
        }
        let len = len_of(payload.len());
        let (va, left) = (write.va.wrapping_add(len.into()), write.left.saturating_sub(len));
        self.open = Open::Write(OpenWrite { va, left, ..write });
        Ok(())
    }

    fn finish_write<H: Host>(&mut self, sh: &mut Shared, host: &mut H, bth: &Bth, imm: Option<ImmDt>) {
        // clause: WC-BYTE-LEN
        let byte_len = if let Open::Write(write) = self.open { write.total } else { 0 };
        self.open = Open::None;
        if let Some(imm) = imm {
            let (opcode, extra) = (WcOpcode::RecvRdmaWithImm, WcExtra::Imm(imm));
            let cqe = Cqe { opcode, byte_len, extra, solicited: bth.solicited, ..Cqe::default() };
            self.complete_receive(sh, host, cqe);
        }
    }

    pub(super) fn complete_receive<H: Host>(&mut self, sh: &mut Shared, host: &mut H, cqe: Cqe) {
        self.receiving = false;
        self.rq.complete(sh, host, cqe);
    }
}

/// The 8 bytes of an ATOMIC WRITE go to memory as they came.
// clause: ATOMIC-WRITE-WHOLE
fn store<H: Host>(host: &mut H, reth: &Reth, payload: RxPayload<'_>) -> Result<(), Refusal> {
    let word = payload.bytes().and_then(|bytes| bytes.try_into().ok()).ok_or(Refusal::Length)?;
    host.store_remote(reth.rkey, reth.va, word).map_err(Refusal::remote)
}

// clause: FLUSH-RANGE, FLUSH-RIGHTS
fn flush<H: Host>(host: &mut H, feth: &Feth, reth: &Reth) -> Result<(), Refusal> {
    let access = Access::of_flush(feth).ok_or(Refusal::NotAllowed)?;
    let range = match feth.selectivity {
        Selectivity::Range => Some((reth.va, reth.dma_len.into())),
        Selectivity::Region | Selectivity::Reserved(_) => None,
    };
    host.flush_remote(reth.rkey, range, access).map_err(Refusal::remote)
}

fn atomic<H: Host>(host: &mut H, eth: &AtomicEth, op: AtomicOp) -> Result<u64, Refusal> {
    host.atomic_remote(eth.rkey, eth.va, op).map_err(Refusal::remote)
}
