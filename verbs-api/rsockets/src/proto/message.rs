//! The message in the immediate data of a WRITE: its upper three bits say what it is, the others
//! how much or which.

use super::Violation;

/// Bits of the number in a message.
const NUMBER_BITS: u32 = 29;
const NUMBER: u32 = (1 << NUMBER_BITS) - 1;

const OP_DATA: u32 = 0;
const OP_CREDIT: u32 = 4;
const OP_IOMAP: u32 = 6;
const OP_CONTROL: u32 = 7;

const DISCONNECT: u32 = 0;
const KEEPALIVE: u32 = 1;
const SHUTDOWN: u32 = 2;

/// What one side tells the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// So many bytes were written behind those before. Zero to 2^29 - 1.
    Data(u32),
    /// Messages up to this number (modulo 2^16) may be sent; a new part of the receive buffer may
    /// be free, too.
    Credit(u16),
    /// This entry of the receiver's table of remote mappings was written.
    Iomap(u16),
    /// The connection itself.
    Control(Control),
}

/// What concerns the connection itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// The sender neither sends nor receives any more.
    Disconnect,
    /// The sender is there. On the wire it is a WRITE of nothing, without immediate data.
    Keepalive,
    /// The sender sends no more.
    Shutdown,
    /// Something of a later version, to be passed over.
    Unknown,
}

impl Message {
    /// The immediate data, as the number that is sent most significant byte first.
    // clause: RSOCK-MESSAGE
    pub(crate) const fn encode(self) -> u32 {
        let (op, number) = match self {
            Self::Data(len) => (OP_DATA, len),
            Self::Credit(up_to) => (OP_CREDIT, up_to as u32),
            Self::Iomap(index) => (OP_IOMAP, index as u32),
            Self::Control(Control::Disconnect) => (OP_CONTROL, DISCONNECT),
            Self::Control(Control::Keepalive) => (OP_CONTROL, KEEPALIVE),
            Self::Control(Control::Shutdown) => (OP_CONTROL, SHUTDOWN),
            Self::Control(Control::Unknown) => (OP_CONTROL, NUMBER),
        };
        op << NUMBER_BITS | number & NUMBER
    }

    /// The message in `imm`. Of a credit the lower 16 bits count.
    ///
    /// # Errors
    /// A reserved type: nobody can tell how many bytes of the stream it stands for.
    pub(crate) const fn decode(imm: u32) -> Result<Self, Violation> {
        let number = imm & NUMBER;
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
    fn every_message_has_its_number() {
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

    /// Every type with every number of 16 bits, with and without the bits above.
    #[test]
    fn all_messages_that_are_read_mean_the_same_when_written() {
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
    fn a_credit_counts_modulo_two_to_the_sixteenth() {
        assert_eq!(Message::decode(0x8001_0003), Ok(Message::Credit(3)));
    }

    #[test]
    fn reserved_types_are_refused_and_unknown_controls_are_not() {
        for op in [1u32, 2, 3, 5] {
            assert_eq!(Message::decode(op << 29 | 7), Err(Violation));
        }
        assert_eq!(Message::decode(0xe000_0099), Ok(Message::Control(Control::Unknown)));
    }
}
