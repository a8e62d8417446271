//! A batch of packets recorded in the capture, in the trace, or both.

use super::packet_comment::{Origin, PacketComment};
use super::recorder::Batch;
use roxe_base::clock;
use roxe_check::trace::{self, TracedPacket};
use roxe_wire::capture::Direction;
use roxe_wire::cm::Mad;
use roxe_wire::{NetHeader, Packet};

/// A batch, written when it is dropped.
#[derive(Debug)]
pub(crate) struct Recording<'a> {
    /// Batch of the capture, and the index of the device's interface in it.
    pub(super) capture: Option<(Batch<'a>, u32)>,
    pub(super) traced: Option<Vec<TracedPacket>>,
}

impl Recording<'_> {
    /// Adds a packet. `payload` reaches from BTH to ICRC.
    pub(crate) fn packet(
        &mut self,
        direction: Direction,
        net: &NetHeader,
        payload: &[u8],
        packet_comment: &PacketComment,
    ) {
        let packet = Packet::parse(payload).ok();
        let message = packet.as_ref().and_then(|packet| Mad::of_packet(packet)?.ok());
        if let Some((batch, interface)) = &mut self.capture {
            batch.packet(*interface, (direction, net, payload), packet_comment, message.as_ref());
        }
        if let Some(traced) = &mut self.traced {
            let (qpn, sent, remark) = match packet_comment.origin {
                Origin::Sent(note) => (note.qpn, Some(note), None),
                Origin::Received(qpn) => (qpn, None, None),
                Origin::Damaged(qpn) => (qpn, None, Some("icrc wrong".to_owned())),
                Origin::Malformed(qpn, error) => (qpn, None, Some(format!("malformed: {error}"))),
                Origin::Unknown(qpn) => (qpn, None, Some("no such queue pair".to_owned())),
            };
            traced.push(TracedPacket {
                at: clock::now(),
                qpn,
                sent,
                peer: if sent.is_some() { net.dst } else { net.src },
                header: packet.map(|packet| (packet.header, packet.payload.len())),
                message: message.map(|mad| mad.to_string()),
                remark: packet_comment.fate.clone().or(remark),
            });
        }
    }

    pub(crate) fn mark(&self) -> (usize, usize) {
        let capture = self.capture.as_ref().map_or(0, |(batch, _)| batch.mark());
        (capture, self.traced.as_ref().map_or(0, Vec::len))
    }

    pub(crate) fn rewind(&mut self, (capture, traced): (usize, usize)) {
        if let Some((batch, _)) = &mut self.capture {
            batch.rewind(capture);
        }
        self.traced.iter_mut().for_each(|packets| packets.truncate(traced));
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.capture = None;
        trace::packets(self.traced.as_deref().unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_transport::cx::{PacketNote, TxReason};
    use roxe_wire::cm::{CommId, MAD_LEN, PrivateData, Rtu, TransactionId, gsi_header};
    use roxe_wire::{Psn, Qpn, icrc};

    fn rtu() -> Vec<u8> {
        let rtu = Rtu { local_comm_id: CommId(1), remote_comm_id: CommId(2), private_data: PrivateData::EMPTY };
        let mad = Mad { tid: TransactionId(3), modifier: 0, message: rtu.into() };
        let header = gsi_header(Psn::new(4));
        let mut packet = vec![0; header.padded_len(MAD_LEN) + icrc::LEN];
        let end = packet.len() - icrc::LEN;
        header.emit(MAD_LEN, &mut packet[..end]).unwrap().copy_from_slice(&mad.to_bytes());
        packet
    }

    #[test]
    fn traced_packet_has_queue_pair_message_and_fate() {
        let mut recording = Recording { capture: None, traced: Some(Vec::new()) };
        let note = PacketNote::without_wr(Qpn::GSI, TxReason::Management);
        let sent = PacketComment { origin: Origin::Sent(note), fate: Some("rule 1: drop: dropped".to_owned()) };
        recording.packet(Direction::Outbound, &NetHeader::default(), &rtu(), &sent);
        let mark = recording.mark();
        let damaged = PacketComment { origin: Origin::Damaged(Qpn::new(5)), fate: None };
        recording.packet(Direction::Inbound, &NetHeader::default(), b"no packet", &damaged);
        let traced = recording.traced.take().unwrap();
        assert_eq!((traced[0].qpn, traced[0].sent), (Qpn::GSI, Some(note)));
        assert_eq!(traced[0].message.as_deref(), Some("CM RTU comm=0x1 peer=0x2"));
        assert_eq!(traced[0].remark.as_deref(), Some("rule 1: drop: dropped"));
        assert_eq!((traced[1].header, traced[1].remark.as_deref()), (None, Some("icrc wrong")));
        recording.traced = Some(traced);
        recording.rewind(mark);
        assert_eq!(recording.traced.take().map(|traced| traced.len()), Some(1));
    }
}
