//! The base transport header: the first 12 bytes of every packet (IBA §9.2).

use crate::bytes::{ParseError, Reader, Writer};
use crate::num::{Pkey, Psn, Qpn};
use crate::opcode::Opcode;
use core::fmt;

/// The fields of the BTH, except the opcode and the pad count, which follow from the other headers
/// and the payload, and the header version, which is always 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Destination queue pair.
    pub dest_qpn: Qpn,
    /// Packet sequence number.
    pub psn: Psn,
    /// Partition key.
    pub pkey: Pkey,
    /// True if the receive completion of this message is solicited (SE).
    pub solicited: bool,
    /// True if the responder must schedule a response (A).
    pub ack_req: bool,
    /// True if the sender's path migration state is "migrated" (M).
    pub mig_req: bool,
    /// True if the packet encountered congestion (F). RoCEv2 uses the ECN bits of the IP header
    /// instead and sends 0.
    pub fecn: bool,
    /// True if the receiver of this packet causes congestion (B); set in a CNP.
    pub becn: bool,
}

impl Bth {
    /// Length on the wire, bytes.
    pub const LEN: usize = 12;

    /// Creates a header with the default partition key and all flags off.
    pub const fn new(dest_qpn: Qpn, psn: Psn) -> Self {
        Self {
            dest_qpn,
            psn,
            pkey: Pkey::DEFAULT,
            solicited: false,
            ack_req: false,
            mig_req: false,
            fecn: false,
            becn: false,
        }
    }

    /// Returns the BTH of the next of several packets that share one header in a ring: it has the
    /// next PSN and no acknowledgement request, which only the first packet may have.
    #[must_use]
    pub const fn next_joined(self) -> Self {
        Self { psn: self.psn.next(), ack_req: false, ..self }
    }

    /// Reads a header; returns the opcode, the pad count and the header. Reserved bits are ignored.
    // clause: BTH-RESERVED
    #[inline]
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<(Opcode, usize, Self), ParseError> {
        let [w0, w1, w2] = from.bth_words()?;
        // clause: BTH-VERSION
        if (w0 >> 16) & 0xf != 0 {
            return Err(ParseError::Version);
        }
        let [code, flags, ..] = w0.to_be_bytes();
        // clause: OPCODE-RESERVED
        let opcode = Opcode::from_u8(code).ok_or(ParseError::Opcode)?;
        let mut bth = Self {
            dest_qpn: Qpn::new(w1),
            psn: Psn::default(),
            pkey: Pkey((w0 & 0xffff) as u16),
            solicited: flags & 0x80 != 0,
            ack_req: false,
            mig_req: flags & 0x40 != 0,
            fecn: w1 & 1 << 31 != 0,
            becn: w1 & 1 << 30 != 0,
        };
        bth.set_last_word(w2);
        Ok((opcode, usize::from(flags >> 4 & 3), bth))
    }

    /// Sets the PSN and the acknowledgement request from the third word of the header.
    #[inline]
    pub(crate) fn set_last_word(&mut self, word: u32) {
        (self.psn, self.ack_req) = (Psn::new(word), word >> 31 != 0);
    }

    /// Writes the header; reserved bits are 0. `pad` is 0..=3.
    #[inline]
    pub(crate) fn write(&self, opcode: Opcode, pad: usize, to: &mut impl Writer) -> Option<()> {
        let flag = |set: bool, bit: u32| u32::from(set) << bit;
        let w0 = u32::from(opcode.to_u8()) << 24
            | flag(self.solicited, 23)
            | flag(self.mig_req, 22)
            | ((pad & 3) as u32) << 20
            | u32::from(self.pkey.0);
        let w1 = flag(self.fecn, 31) | flag(self.becn, 30) | self.dest_qpn.get();
        let w2 = flag(self.ack_req, 31) | self.psn.get();
        to.bth_words([w0, w1, w2])
    }
}

impl fmt::Display for Bth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dqpn={} psn={}", self.dest_qpn, self.psn)?;
        if self.pkey != Pkey::DEFAULT {
            write!(f, " pkey={:#06x}", self.pkey.0)?;
        }
        let flags = [
            (self.ack_req, " ackreq"),
            (self.solicited, " solicited"),
            (self.mig_req, " migreq"),
            (self.fecn, " fecn"),
            (self.becn, " becn"),
        ];
        flags.into_iter().filter(|(set, _)| *set).try_for_each(|(_, name)| f.write_str(name))
    }
}
