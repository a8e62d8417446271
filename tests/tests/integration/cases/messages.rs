//! Tests messages and remote memory accesses that succeed: every operation with every length, and
//! the fields of the completions.

use super::script::{in_every_config, on_every_network};

#[test]
fn message_fills_receive_sges_and_carries_immediate_data() {
    for service in ["rc", "uc"] {
        in_every_config(&format!(
            "pair q {service}
             a fill 0+9 7
             b recv q 5 10+9 100+10000
             a send q 6 send 0+9 imm=3735928559
             a sent 6 ok send qp=a.q
             b got 5 ok recv len=9 imm=3735928559 qp=b.q
             b holds 10+9 7
             b blank 0+10
             b blank 19+1000
             a fill 0+12 8
             b recv q 7 200+5 300+7
             a send q 8 send 0+5 5+7
             a sent 8 ok send
             b got 7 ok recv len=12 imm=0
             b holds 200+5 8"
        ));
    }
}

#[test]
fn sends_writes_and_reads_of_every_length_carry_every_byte() {
    for (mtu, lens) in [
        (256, [0, 1, 7, 255, 256, 257, 511, 513, 20_001]),
        (1024, [1023, 1024, 1025, 2047, 2048, 2049, 5000, 65_536, 65_537]),
        (4096, [4095, 4096, 4097, 8191, 8192, 8193, 100_000, 262_144, 300_001]),
    ] {
        on_every_network(&every_length(mtu, &lens));
    }
}

/// Returns a script with each operation for each of these lengths.
fn every_length(mtu: u32, lens: &[usize]) -> String {
    let mut script = format!("pair q rc mtu={mtu}\n");
    for (seed, len) in (1..).zip(lens) {
        let other = seed + 100;
        script += &format!(
            "a fill 0+{len} {seed}
             b recv q 1 0+{len}
             a send q 2 send 0+{len}
             a sent 2 ok send
             b got 1 ok recv len={len}
             b holds 0+{len} {seed}
             a send q 3 write 0+{len} @300001
             a sent 3 ok write
             b holds 300001+{len} {seed}
             b fill 600001+{len} {other}
             a send q 4 read 650007+{len} @600001
             a sent 4 ok read
             a holds 650007+{len} {other}\n"
        );
    }
    script
}

#[test]
fn write_with_immediate_consumes_a_receive() {
    on_every_network(
        "pair q rc
         a fill 0+3000 9
         b recv q 1
         a send q 2 write 0+3000 @77 imm=9
         a sent 2 ok write
         b got 1 ok recv_imm len=3000 imm=9
         b holds 77+3000 9
         b blank 0+77",
    );
}

#[test]
fn atomics_return_old_value_and_change_word_on_match() {
    on_every_network(
        "pair q rc
         a fill 0+8 0
         a send q 1 add 8+8 @64 add=40
         a send q 2 add 16+8 @64 add=18446744073709551615
         a send q 3 swap 24+8 @64 compare=39 swap=7
         a send q 4 swap 32+8 @64 compare=39 swap=9
         a sent 1 ok add
         a sent 2 ok add
         a sent 3 ok swap
         a sent 4 ok swap
         a word 8 0
         a word 16 40
         a word 24 39
         a word 32 7
         b word 64 7",
    );
}

#[test]
fn inline_data_needs_no_key_and_is_copied_at_once() {
    on_every_network(
        "pair q rc
         a fill 0+60 3
         b recv q 1 0+60
         a send q 2 send 0+20 20+40 inline unsignaled
         a send q 3 write 0+60 @100 inline
         a sent 3 ok write
         b got 1 ok recv len=60
         b holds 0+60 3
         b holds 100+60 3",
    );
}

#[test]
fn sq_sig_all_and_signaled_requests_report_success() {
    for (which, extra) in [("", ""), ("all_signaled", "a sent 2 ok write\na sent 3 ok read\n")] {
        on_every_network(&format!(
            "pair q rc {which}
             a send q 1 write 0+8 @0
             a send q 2 write 0+8 @0 unsignaled
             a send q 3 read 0+8 @0 unsignaled
             a send q 4 write 0+8 @0
             a sent 1 ok write
             {extra}a sent 4 ok write"
        ));
    }
}

#[test]
fn requests_complete_in_posting_order() {
    let (mut posts, mut ends) = (String::new(), String::new());
    for id in 0..40 {
        let operation = ["write 0+3000 @0", "read 5000+3000 @0", "add 9000+8 @8000 add=1"][id % 3];
        posts += &format!("a send q {id} {operation}\n");
        ends += &format!("a sent {id} ok {}\n", ["write", "read", "add"][id % 3]);
    }
    on_every_network(&format!("pair q rc\n{posts}{ends}b word 8000 13"));
}

#[test]
fn fenced_request_sends_the_bytes_of_earlier_reads() {
    on_every_network(
        "pair q rc
         b fill 0+8000 5
         a send q 1 read 0+8000 @0 unsignaled
         a send q 2 write 0+8000 @20000 fence
         a sent 2 ok write
         b holds 20000+8000 5",
    );
}

#[test]
fn datagram_carries_grh_and_source_qp() {
    in_every_config(
        "pair q ud
         a fill 0+1000 4
         b recv q 1 0+1040
         a send q 2 send 0+1000 to=b.q imm=6
         a sent 2 ok send
         b got 1 ok recv len=1040 imm=6 from=a.q qp=b.q
         b holds 40+1000 4
         b recv q 3 2000+50
         a send q 4 send 0+10 to=b.q inline
         a sent 4 ok send
         b got 3 ok recv len=50 imm=0 from=a.q
         b holds 2040+10 4",
    );
}

#[test]
fn every_group_member_gets_a_copy_until_it_leaves() {
    in_every_config(
        "pair q ud
         pair p ud
         b attach q 9
         b attach p 9
         b recv q 1 0+140
         b recv q 2 0+140
         b recv p 3 200+140
         b recv p 4 200+140
         a fill 0+100 6
         a send q 5 send 0+100 to=16777215 group=9
         a sent 5 ok send
         b got_any 1 3
         b holds 40+100 6
         b holds 240+100 6
         b detach p 9
         ! b detach p 9
         ! b attach p 127.0.0.1
         pair r rc
         ! b attach r 9
         a send q 6 send 0+100 to=16777215 group=9
         a sent 6 ok send
         b got 2 ok recv len=140 from=a.q qp=b.q",
    );
}
