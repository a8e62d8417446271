//! Known defects of rxe that make cells fail, each with its evidence.
//!
//! A defect excuses a failure only if it matches both the cell and the failure's output. The report
//! then names the defect, and does not count the cell as passed.

use super::{Cell, Direction, Group, Op, Service};

/// A defect of the peer.
pub struct PeerBug {
    /// Description for reports.
    pub name: &'static str,
    /// Returns true if the defect can affect this cell.
    pub affects: fn(&Group, &Cell) -> bool,
    /// Text in the output of a failure that it causes.
    pub output: &'static str,
}

/// All known defects.
pub const KNOWN: &[PeerBug] = &[
    PeerBug {
        name: "rxe's UC responder rejects every long WRITE after one whose LAST packet was lost",
        affects: long_uc_write_to_rxe_under_loss,
        output: "responder: 0 of ",
    },
    PeerBug {
        name: "rxe's UC requester waits forever for packets that it has sent already",
        affects: over_64_uc_packets_from_rxe,
        output: "requester: no completion of message ",
    },
];

/// Seen with Linux 6.1. One lost packet is enough, although all later packets arrive in order and
/// with a good ICRC. `ROXE_FAULTS='drop tx op=WRITE_LAST nth=1'` and the arguments `'roxe->rxe ipv4
/// clean' ' UC write ' size=257` fail every time, with `0 of 4 messages arrived, 12 were sent`;
/// `ROXE_CAPTURE` shows the twelve messages. rxe's responder abandons an unfinished message only if
/// that message holds a receive, and a WRITE holds none. The responder then waits for a MIDDLE or
/// LAST packet and drops each FIRST. IBA requires it to start the new message.
fn long_uc_write_to_rxe_under_loss(group: &Group, cell: &Cell) -> bool {
    let long_write = matches!(cell.op, Op::Write | Op::WriteImm) && cell.size > cell.mtu;
    let to_rxe = group.direction == Direction::RoxeToRxe && group.condition.lossy();
    to_rxe && cell.service == Service::Uc && long_write
}

/// Seen once with Linux 6.1: the last of four SENDs of 256 packets had no completion after two
/// minutes. A UC requester completes a message once it is sent, without a reply. rxe's requester
/// pauses while over 64 of its packets are in the network device: it counts them and then sets a
/// flag that asks for a wakeup. The function that returns packets (`rxe_skb_tx_dtor`) reads this
/// flag without a lock. If all packets return between the count and the flag, nothing wakes the
/// requester. An RC requester continues when its timer expires; UC has no timer. More than 64
/// packets are in flight only if one message has more (`PACKETS_AT_ONCE` in `roxe_peer::check`).
fn over_64_uc_packets_from_rxe(group: &Group, cell: &Cell) -> bool {
    group.direction == Direction::RxeToRoxe && cell.service == Service::Uc && cell.size > 64 * cell.mtu
}

/// Returns the name of the known defect that explains why `cell` failed with `output`.
pub fn known_bug(group: &Group, cell: &Cell, output: &str) -> Option<&'static str> {
    KNOWN.iter().find(|bug| (bug.affects)(group, cell) && output.contains(bug.output)).map(|bug| bug.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{Condition, Ip};

    #[test]
    fn stalled_requester_excuses_no_other_failure() {
        let group = Group { direction: Direction::RxeToRoxe, ip: Ip::V6, condition: Condition::Clean };
        let cell = Cell { service: Service::Uc, op: Op::Send, size: 65536, mtu: 256 };
        let output = "requester: no completion of message 3 within 120 s";
        assert!(known_bug(&group, &cell, output).is_some());
        assert!(known_bug(&group, &cell, "responder: 0 of 4 messages arrived, 12 were sent").is_none());
        assert!(known_bug(&Group { direction: Direction::RoxeToRxe, ..group }, &cell, output).is_none());
        assert!(known_bug(&group, &Cell { mtu: 1024, ..cell }, output).is_none());
        assert!(known_bug(&group, &Cell { service: Service::Rc, ..cell }, output).is_none());
    }

    #[test]
    fn stuck_responder_excuses_no_other_failure() {
        let group = Group { direction: Direction::RoxeToRxe, ip: Ip::V4, condition: Condition::Netem };
        let cell = Cell { service: Service::Uc, op: Op::Write, size: 257, mtu: 256 };
        let output = "responder: 0 of 4 messages arrived, 12 were sent";
        assert!(known_bug(&group, &cell, output).is_some());
        assert!(known_bug(&group, &cell, "responder: wrong bytes").is_none());
        assert!(known_bug(&Group { condition: Condition::Clean, ..group }, &cell, output).is_none());
        assert!(known_bug(&Group { direction: Direction::RxeToRoxe, ..group }, &cell, output).is_none());
        assert!(known_bug(&group, &Cell { size: 256, ..cell }, output).is_none());
        assert!(known_bug(&group, &Cell { op: Op::Send, ..cell }, output).is_none());
        assert!(known_bug(&group, &Cell { service: Service::Rc, ..cell }, output).is_none());
    }
}
