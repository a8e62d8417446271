//! The packets of a case, for messages and captures.

use crate::craft::describe;
use crate::target::Datagram;
use roxe_wire::capture::{Direction, Outgoing, write_interface, write_packet, write_section};
use std::fmt::Write;
use std::time::Duration;

/// Maximum number of packets in the message of a failure.
const MAX_SHOWN: usize = 10;

/// A packet that the card sent or received.
#[derive(Clone, Debug)]
pub struct LoggedPacket {
    /// Time on the target's clock.
    pub at: Duration,
    /// True if the card sent it.
    pub from_card: bool,
    /// Addresses and bytes of the packet.
    pub datagram: Datagram,
    /// The mismatch with the script, if the case failed at this packet; else empty.
    pub remark: String,
}

/// All packets of a case.
#[derive(Clone, Debug, Default)]
pub struct Log(Vec<LoggedPacket>);

impl Log {
    pub(crate) fn add(&mut self, at: Duration, from_card: bool, datagram: Datagram) {
        self.0.push(LoggedPacket { at, from_card, datagram, remark: String::new() });
    }

    /// Adds a remark to the newest packet.
    pub(crate) fn remark(&mut self, text: &str) {
        if let Some(last) = self.0.last_mut() {
            last.remark = text.into();
        }
    }

    /// Returns the packets, oldest first.
    pub fn packets(&self) -> &[LoggedPacket] {
        &self.0
    }

    /// Returns the newest packets, one per line: `>` to the card, `<` from it.
    pub fn format_newest(&self) -> String {
        let mut text = String::new();
        let start = self.0.first().map_or(Duration::ZERO, |seen| seen.at);
        let skipped = self.0.len().saturating_sub(MAX_SHOWN);
        if skipped > 0 {
            _ = writeln!(text, "    ({skipped} packets before these)");
        }
        for seen in self.0.iter().skip(skipped) {
            let arrow = if seen.from_card { '<' } else { '>' };
            let time = seen.at.saturating_sub(start).as_secs_f64();
            _ = writeln!(text, "    {time:.6} {arrow} {}", describe(&seen.datagram.bytes));
        }
        text
    }

    /// Returns a pcapng file of all packets, captured at the near side: the one opposite the card.
    pub fn to_pcapng(&self) -> Vec<u8> {
        let mut file = Vec::new();
        write_section(&mut file, "roxe drill");
        write_interface(&mut file, "near side");
        for seen in &self.0 {
            let direction = if seen.from_card { Direction::Inbound } else { Direction::Outbound };
            let packet = Outgoing {
                interface: 0,
                timestamp_ns: seen.at.as_nanos() as u64,
                direction,
                net: seen.datagram.net,
                payload: &seen.datagram.bytes,
                comment: &seen.remark,
            };
            write_packet(&mut file, &packet);
        }
        file
    }
}
