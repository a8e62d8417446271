//! The send loop of RC and XRC: a packet leaves when there is room for it at the peer, and some ask
//! for an acknowledgement.

use crate::cx::{Host, TxBatch};
use crate::qp::in_flight::Room;
use crate::qp::outgoing::{Departing, Outgoing, Put};
use crate::qp::requester::{Cursor, Requester, Step};
use crate::qp::segment;
use crate::qp::shared::{Service, Shared};
use crate::qp::sq::SendWqe;
use crate::wr::WcStatus;
use roxe_wire::{Bth, Header, Kind, XrcEth};

impl Requester {
    /// Puts the RC packet at the cursor into the batch.
    pub(super) fn send_reliable<H: Host, T: TxBatch>(&mut self, sh: &mut Shared, host: &mut H, tx: &mut T) -> Step {
        let mtu = sh.attr.path_mtu;
        self.begin(mtu);
        let Some(wqe) = self.sq.get(self.cursor.wqe) else { return Step::Stop };
        // clause: SEND-RD-ATOMIC-0
        if wqe.awaits_response() && sh.attr.max_rd_atomic == 0 {
            return self.stop_with(sh, host, WcStatus::LocQpOpErr);
        }
        let Some(packet) = Outgoing::of(wqe, self.cursor.packet, mtu) else {
            return if wqe.is_local() {
                self.run_local(sh, host)
            } else {
                // clause: SEND-ATOMIC-LENGTH
                self.stop_with(sh, host, WcStatus::LocLenErr)
            };
        };
        let cost = packet.cost::<H>();
        let run = || packet.charge_behind::<H>(wqe, self.cursor.packet, mtu);
        // Built where it is read: whoever copies what was just written in small pieces waits until
        // all that was written before is there, also in a ring that the other processor has.
        let mut departing = Departing {
            av: &sh.path,
            header: self.header(sh, wqe, &packet),
            payload: self.sq.payload(self.cursor.wqe, wqe),
            note: self.note(sh, wqe),
        };
        let fits_same_send = |count| tx.fits_same_send(departing.header.padded_len(packet.len as usize), count);
        let room = self.in_flight.reserve(sh, host, cost, packet.next_len.map_or(0, H::charge), run, fits_same_send);
        if room == Room::None {
            return Step::Stop;
        }
        // clause: SEND-ASK-STALL, SEND-ASK-MIDDLE
        let asks_ack = packet.asks_ack
            || room == Room::First
            || self.unasked.is_enough(cost, self.window)
            || sh.congestion.pauses_after(host.now(), packet.len);
        departing.header.bth.ack_req = asks_ack;
        match departing.put(host, tx, &packet) {
            Put::Done => {}
            Put::Full => return Step::BatchFull,
            // clause: SEND-LOCAL-FAULT
            Put::Fault => return self.stop_with(sh, host, WcStatus::LocProtErr),
        }
        self.reads_out += u32::from(wqe.awaits_response());
        self.bytes_due += packet.brings;
        self.in_flight.on_sent(cost);
        self.unasked.add(1, cost, asks_ack);
        self.advance(packet.span);
        self.retry.on_sent(&sh.attr, host.now());
        Step::Sent(packet.len)
    }

    /// Goes on with the packets that are neither first nor last of the message whose packet has
    /// just left: what differs from one to the next is little, and the rest is done once for all of
    /// them.
    pub(super) fn send_middles<H: Host, T: TxBatch>(&mut self, sh: &mut Shared, host: &mut H, tx: &mut T) -> Step {
        let (mtu, Cursor { wqe: at, packet: index, .. }) = (sh.attr.path_mtu, self.cursor);
        let sent = Step::Sent(mtu.bytes());
        let Some(wqe) = self.sq.get(at).filter(|wqe| index + 1 < wqe.packets && !wqe.awaits_response()) else {
            return sent;
        };
        let Some(mut packet) = Outgoing::of(wqe, index, mtu) else { return sent };
        let (header, payload) = (self.header(sh, wqe, &packet), self.sq.payload(at, wqe));
        let Some(form) = header.form(packet.len as usize) else { return sent };
        let mut departing = Departing { av: &sh.path, header, payload, note: self.note(sh, wqe) };
        let (cost, mut joins) = (packet.cost::<H>(), false);
        while let Some(next) = packet.next_len
            // clause: PSN-OUTSTANDING
            && self.cursor.psn.distance(self.una_psn) < self.window
        {
            let index = self.cursor.packet;
            // Those that need not ask may share the header of the one before.
            let spare = if joins { self.unasked.spare(cost, self.window) } else { 0 };
            let silent = spare.min(wqe.packets - 1 - index);
            let joined = if silent > 0 {
                let behind = H::charge(segment::payload_len(wqe.length, mtu, index + silent));
                let run = || packet.charge_behind::<H>(wqe, index + silent - 1, mtu);
                let room = self.in_flight.reserve(sh, host, silent * cost, behind, run, |_| false);
                if room == Room::Both { departing.join(host, tx, &packet, silent) } else { 0 }
            } else {
                0
            };
            let mut asks_ack = false;
            if joined == 0 {
                let run = || packet.charge_behind::<H>(wqe, index, mtu);
                let fits_same_send = |count| tx.fits_same_send(form.len(), count);
                let room = self.in_flight.reserve(sh, host, cost, H::charge(next), run, fits_same_send);
                if room == Room::None {
                    return Step::Stop;
                }
                // clause: SEND-ASK-STALL, SEND-ASK-MIDDLE
                asks_ack = room == Room::First || self.unasked.is_enough(cost, self.window);
                (departing.header.bth.ack_req, departing.header.bth.psn) = (asks_ack, self.cursor.psn);
                departing.note.reason = self.tx_reason();
                match departing.put_as(host, tx, &form, packet.offset) {
                    Put::Done => joins = sh.config.service == Service::Rc && tx.joins(),
                    Put::Full => return Step::BatchFull,
                    // clause: SEND-LOCAL-FAULT
                    Put::Fault => return self.stop_with(sh, host, WcStatus::LocProtErr),
                }
            }
            let count = joined.max(1);
            self.in_flight.on_sent(count * cost);
            self.unasked.add(count, count * cost, asks_ack);
            self.cursor.step(count, &mut self.sent_psn);
            packet.go_on(wqe, self.cursor.packet, mtu);
        }
        sent
    }

    /// The headers of `packet` of `wqe`, which is at the cursor and asks for no acknowledgement
    /// yet.
    fn header(&self, sh: &Shared, wqe: &SendWqe, packet: &Outgoing) -> Header {
        let bth = Bth {
            solicited: packet.solicited,
            // clause: BTH-MIGRATED
            mig_req: sh.mig_req(),
            ..Bth::new(sh.attr.dest_qpn, self.cursor.psn)
        };
        let kind = match sh.config.service {
            Service::Rc => Kind::RcRequest(packet.request),
            // clause: XRC-EVERY-REQUEST
            _ => Kind::XrcRequest(XrcEth(wqe.srqn), packet.request),
        };
        Header { bth, kind }
    }
}
