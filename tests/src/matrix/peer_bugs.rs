//! Ways a cell is known to fail because of a defect in rxe, each with how we know.
//!
//! An entry excuses a failure only if the cell and what was seen both match it; the result then
//! names the defect, apart from what passed. A cell that passes is simply passed.

use super::{Cell, Direction, Group, Op, Service};

/// A defect of the peer.
pub struct PeerBug {
    /// Name, and the evidence that the defect is the peer's.
    pub name: &'static str,
    /// Which cells it touches.
    pub touches: fn(&Group, &Cell) -> bool,
    /// Words of the failure that it causes.
    pub seen: &'static str,
}

/// Every known one.
pub const KNOWN: &[PeerBug] = &[
    PeerBug {
        name: "rxe's UC responder rejects every long WRITE after one whose LAST packet was lost",
        touches: long_uc_write_to_rxe_under_loss,
        seen: "responder: 0 of ",
    },
    PeerBug {
        name: "rxe's UC requester waits forever for packets that it has sent already",
        touches: over_64_uc_packets_from_rxe,
        seen: "requester: no completion of message ",
    },
];

/// Seen with Linux 6.1. One lost packet is enough, everything after it being in order and with a
/// good ICRC: `ROXE_FAULTS='drop tx op=WRITE_LAST nth=1'` and the words `'roxe->rxe ipv4 clean' '
/// UC write ' size=257` fail every time, with `0 of 4 messages arrived, 12 were sent`;
/// `ROXE_CAPTURE` shows the twelve messages. A WRITE consumes no receive, and only with a receive
/// at hand does that responder forget the message it has begun; so it goes on waiting for a MIDDLE
/// or LAST packet and drops each FIRST. IBA has it start the new message.
fn long_uc_write_to_rxe_under_loss(group: &Group, cell: &Cell) -> bool {
    let long_write = matches!(cell.op, Op::Write | Op::WriteImm) && cell.size > cell.mtu;
    let to_rxe = group.direction == Direction::RoxeToRxe && group.condition.lossy();
    to_rxe && cell.service == Service::Uc && long_write
}

/// Seen once with Linux 6.1: the last of four SENDs of 256 packets had no completion after two
/// minutes. A UC requester completes a message once it is sent, without an answer of the peer. That
/// of rxe pauses while over 64 of its packets are in the network device: it counts them and then
/// sets a flag that it wants to be woken. The function that returns packets (`rxe_skb_tx_dtor`)
/// reads this flag without a lock. If all packets return in between, the requester is never woken.
/// An RC requester continues when its timer expires; UC has no timer. A group of messages has over
/// 64 packets only where one message has (`PACKETS_AT_ONCE` in `roxe_peer::check`).
fn over_64_uc_packets_from_rxe(group: &Group, cell: &Cell) -> bool {
    group.direction == Direction::RxeToRoxe && cell.service == Service::Uc && cell.size > 64 * cell.mtu
}

/// The defect that explains why `cell` failed with `seen`.
pub fn explains(group: &Group, cell: &Cell, seen: &str) -> Option<&'static str> {
    KNOWN.iter().find(|bug| (bug.touches)(group, cell) && seen.contains(bug.seen)).map(|bug| bug.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{Condition, Ip};

    #[test]
    fn stalled_requester_excuses_nothing_else() {
        let group = Group { direction: Direction::RxeToRoxe, ip: Ip::V6, condition: Condition::Clean };
        let cell = Cell { service: Service::Uc, op: Op::Send, size: 65536, mtu: 256 };
        let seen = "requester: no completion of message 3 within 120 s";
        assert!(explains(&group, &cell, seen).is_some());
        assert!(explains(&group, &cell, "responder: 0 of 4 messages arrived, 12 were sent").is_none());
        assert!(explains(&Group { direction: Direction::RoxeToRxe, ..group }, &cell, seen).is_none());
        assert!(explains(&group, &Cell { mtu: 1024, ..cell }, seen).is_none());
        assert!(explains(&group, &Cell { service: Service::Rc, ..cell }, seen).is_none());
    }

    #[test]
    fn dead_responder_excuses_nothing_else() {
        let group = Group { direction: Direction::RoxeToRxe, ip: Ip::V4, condition: Condition::Netem };
        let cell = Cell { service: Service::Uc, op: Op::Write, size: 257, mtu: 256 };
        let seen = "responder: 0 of 4 messages arrived, 12 were sent";
        assert!(explains(&group, &cell, seen).is_some());
        assert!(explains(&group, &cell, "responder: wrong bytes").is_none());
        assert!(explains(&Group { condition: Condition::Clean, ..group }, &cell, seen).is_none());
        assert!(explains(&Group { direction: Direction::RxeToRoxe, ..group }, &cell, seen).is_none());
        assert!(explains(&group, &Cell { size: 256, ..cell }, seen).is_none());
        assert!(explains(&group, &Cell { op: Op::Send, ..cell }, seen).is_none());
        assert!(explains(&group, &Cell { service: Service::Rc, ..cell }, seen).is_none());
    }
}
