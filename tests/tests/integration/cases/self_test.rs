//! The harness itself: a script that promises what does not happen fails, and says where.

use super::arms::{Arm, alone};
use super::script::Script;

/// Checks that every arm rejects the script with this message.
fn all_say(script: &str, why: &str) {
    for arm in Arm::on_good_networks() {
        let said = alone(|| Script::run(script, arm));
        assert!(said.as_ref().is_err_and(|said| said.contains(why)), "{}: {said:?}", arm.name);
    }
}

#[test]
fn script_with_unmet_expectation_fails() {
    let pair = "pair q rc\nb recv q 1 0+8\na fill 0+8 5\na send q 2 send 0+8 imm=3\n";
    let good = format!("{pair}a sent 2 ok send\nb got 1 ok recv len=8 imm=3\nb holds 0+8 5");
    for arm in Arm::on_good_networks() {
        assert_eq!(alone(|| Script::run(&good, arm)), Ok(()), "{}", arm.name);
    }
    for (line, why) in [
        ("a sent 3 ok send", "completion 2 with status 0"),
        ("a sent 2 rem_access", "completion 2 with status 0"),
        ("a sent 2 ok write", "operation 0"),
        ("b got 1 ok recv len=9", "len is 8, not 9"),
        ("b got 1 ok recv imm=4", "imm is 3, not 4"),
        ("b got 1 ok recv qp=a.q", "qp is"),
        ("a sent 2 ok send", "1 completions of b are left"),
        ("a sent 2 ok send\nb got 1 ok recv\nb holds 0+8 6", "byte 0 of 8 differs"),
        ("a sent 2 ok send\nb got 1 ok recv\nb blank 0+8", "byte 0 of 8 differs"),
        ("a sent 2 ok send\nb got 1 ok recv\nb word 0 1", "byte 0 of 8 differs"),
        ("a state q err", "3 instead of 6"),
        ("! a arm sends", "not refused"),
        ("a attach q 127.0.0.1", "refused"),
        ("a arm receives\nb arm sends\nb arm receives\nb woken sends", "receives instead of sends"),
    ] {
        all_say(&format!("{pair}{line}"), why);
    }
}
