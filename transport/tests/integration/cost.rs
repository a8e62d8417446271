//! The cost of loss as a table: packets, timeouts and virtual time by operation, size and loss.
//! Everything is deterministic, so the table shows every change of the retry machinery.

use super::*;
use core::fmt::Write;
use roxe_wire::PathMtu;

/// Number of messages in a line of the table.
const MESSAGES: u64 = 20;

/// Returns one line: `MESSAGES` messages of `len` bytes, one after the other, while `loss` percent
/// of all packets are lost.
fn line(name: &str, len: u32, loss: u32) -> String {
    let mut p = Pair::new(Setup { path_mtu: PathMtu::Mtu1024, log: false, ..Setup::default() });
    let (src, dst) = (filled(&mut p, A, len.max(8)), filled(&mut p, B, len.max(8)));
    p.wire.set_faults(&rules(&format!("drop tx {loss}%")), 1);
    p.wire.pause_faults_after = Some(5);
    for id in 0..MESSAGES {
        let op = match name {
            "SEND" => SendOp::Send,
            "WRITE" => write_to(dst),
            "READ" => read_from(dst),
            _ => add_to(dst, 1),
        };
        recv(&mut p, B, id, &[dst.all()]);
        post(&mut p, A, id, op, &[src.sge(0, len)]);
        p.run();
        assert_eq!(sends(&mut p, A), statuses(id..=id, WcStatus::Success));
        // Only a SEND consumes a receive; the next message starts with an empty queue in any case.
        if name != "SEND" {
            post(&mut p, A, id, SendOp::Send, &[]);
            p.run();
            sends(&mut p, A);
        }
        assert_eq!(recvs(&mut p, B), statuses(id..=id, WcStatus::Success));
    }
    let (sent, timeouts) = (p.wire.tally.sent, p.timeouts[0]);
    let elapsed = p.elapsed().as_micros();
    format!("{name:9} {len:7} bytes {loss:4} % lost: {sent:6} packets {timeouts:3} timeouts {elapsed:9} us")
}

#[test]
fn cost_table_equals_the_reviewed_file() {
    let mut table = String::new();
    for (name, lens) in [
        ("SEND", &[0, 1024, 16 << 10, 64 << 10][..]),
        ("WRITE", &[1024, 16 << 10, 64 << 10]),
        ("READ", &[1024, 16 << 10, 64 << 10]),
        ("FETCH_ADD", &[8]),
    ] {
        for &len in lens {
            for loss in [0, 1, 5, 10] {
                writeln!(table, "{}", line(name, len, loss)).expect("write to a String");
            }
        }
    }
    assert!(table == include_str!("cost_table.txt"), "a cost changed; review it and update cost_table.txt:\n{table}");
}
