//! Messages in the immediate data of a WRITE: 3 bits of type, then a number of 29 bits.

use super::Violation;

const NUMBER_BITS: u32 = 29;
const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;

const OP_DATA: u32 = 0;
const OP_CREDIT: u32 = 4;
const OP_IOMAP: u32 = 6;
const OP_CONTROL: u32 = 7;

const DISCONNECT: u32 = 0;
const KEEPALIVE: u32 = 1;
const SHUTDOWN: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Number of bytes, below 2^29, that this WRITE appended to the receiver's buffer.
    Data(u32),
    /// Number (modulo 2^16) of the last message that the receiver may send. The sender may also
    /// have written a new target.
    Credit(u16),
    /// Index of the entry that this WRITE set in the receiver's table of remote mappings.
    Iomap(u16),
    Control(Control),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// The sender neither sends nor receives.
    Disconnect,
    /// The sender is alive. On the wire it is an empty WRITE without immediate data.
    Keepalive,
    /// The sender sends nothing more.
    Shutdown,
    /// From a later version; ignored.
    Unknown,
}

impl Message {
    /// Returns the immediate data, whose most significant byte is sent first.
    // clause: RSOCK-MESSAGE
    pub(crate) const fn encode(self) -> u32 {
        let (op, number) = match self {
            Self::Data(len) => (OP_DATA, len),
            Self::Credit(up_to) => (OP_CREDIT, up_to as u32),
            Self::Iomap(index) => (OP_IOMAP, index as u32),
            Self::Control(Control::Disconnect) => (OP_CONTROL, DISCONNECT),
            Self::Control(Control::Keepalive) => (OP_CONTROL, KEEPALIVE),
            Self::Control(Control::Shutdown) => (OP_CONTROL, SHUTDOWN),
            Self::Control(Control::Unknown) => (OP_CONTROL, NUMBER_MASK),
        };
        op << NUMBER_BITS | number & NUMBER_MASK
    }

    /// Decodes immediate data. Ignores the upper bits of the number of a credit or mapping.
    ///
    /// # Errors
    /// [`Violation`] for a reserved type: the stream cannot continue, because the number of bytes
    /// that the message wrote is unknown.
    pub(crate) const fn decode(imm: u32) -> Result<Self, Violation> {
        let number = imm & NUMBER_MASK;
        Ok(match imm >> NUMBER_BITS {
            OP_DATA => Self::Data(number),
            OP_CREDIT => Self::Credit(number as u16),
            OP_IOMAP => Self::Iomap(number as u16),
            OP_CONTROL => Self::Control(match number {
                DISCONNECT => Control::Disconnect,
                KEEPALIVE => Control::Keepalive,
                SHUTDOWN => Control::Shutdown,
                _ => Control::Unknown,
            }),
            _ => return Err(Violation),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // clause: RSOCK-MESSAGE
    #[test]
    fn messages_match_the_wire_format() {
        for (message, imm) in [
            (Message::Data(0x1234), 0x0000_1234),
            (Message::Credit(384), 0x8000_0180),
            (Message::Iomap(5), 0xc000_0005),
            (Message::Control(Control::Disconnect), 0xe000_0000),
            (Message::Control(Control::Keepalive), 0xe000_0001),
            (Message::Control(Control::Shutdown), 0xe000_0002),
        ] {
            assert_eq!(message.encode(), imm);
            assert_eq!(Message::decode(imm), Ok(message));
        }
    }

    #[test]
    fn decoded_messages_roundtrip() {
        for high in 0..1u32 << 16 {
            for low in [0, 1, 2, 3, 0x7fff, 0xffff] {
                let (imm, swapped) = (high << 16 | low, low << 16 | high);
                for imm in [imm, swapped] {
                    let is_reserved = [1, 2, 3, 5].contains(&(imm >> NUMBER_BITS));
                    let message = Message::decode(imm);
                    assert_eq!(message.is_err(), is_reserved, "{imm:#x}");
                    if let Ok(message) = message {
                        assert_eq!(Message::decode(message.encode()), Ok(message), "{imm:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn credit_counts_modulo_65536() {
        assert_eq!(Message::decode(0x8001_0003), Ok(Message::Credit(3)));
    }

    #[test]
    fn reserved_types_are_refused_and_unknown_controls_ignored() {
        for op in [1u32, 2, 3, 5] {
            assert_eq!(Message::decode(op << 29 | 7), Err(Violation));
        }
        assert_eq!(Message::decode(0xe000_0099), Ok(Message::Control(Control::Unknown)));
    }
}
