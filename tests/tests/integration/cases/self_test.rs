//! Tests the harness: a script with an unmet expectation fails with a message about it.

use super::configs::{Config, alone};
use super::script::Script;

/// Checks that the script fails with this message in every configuration.
fn assert_fails(script: &str, why: &str) {
    for config in Config::on_good_networks() {
        let result = alone(|| Script::run(script, config));
        assert!(result.as_ref().is_err_and(|error| error.contains(why)), "{}: {result:?}", config.name);
    }
}

#[test]
fn script_with_unmet_expectation_fails() {
    let pair = "pair q rc\nb recv q 1 0+8\na fill 0+8 5\na send q 2 send 0+8 imm=3\n";
    let good = format!("{pair}a sent 2 ok send\nb got 1 ok recv len=8 imm=3\nb holds 0+8 5");
    for config in Config::on_good_networks() {
        assert_eq!(alone(|| Script::run(&good, config)), Ok(()), "{}", config.name);
    }
    for (line, why) in [
        ("a sent 3 ok send", "completion 2 with status 0"),
        ("a sent 2 rem_access", "completion 2 with status 0"),
        ("a sent 2 ok write", "operation 0"),
        ("b got 1 ok recv len=9", "len is 8, not 9"),
        ("b got 1 ok recv imm=4", "imm is 3, not 4"),
        ("b got 1 ok recv qp=a.q", "qp is"),
        ("a sent 2 ok send", "1 completions of b were not polled"),
        ("a sent 2 ok send\nb got 1 ok recv\nb holds 0+8 6", "byte 0 of 8 differs"),
        ("a sent 2 ok send\nb got 1 ok recv\nb blank 0+8", "byte 0 of 8 differs"),
        ("a sent 2 ok send\nb got 1 ok recv\nb word 0 1", "byte 0 of 8 differs"),
        ("a state q err", "3 instead of 6"),
        ("! a arm sends", "not refused"),
        ("a attach q 127.0.0.1", "refused"),
        ("a arm receives\nb arm sends\nb arm receives\nb woken sends", "receives instead of sends"),
    ] {
        assert_fails(&format!("{pair}{line}"), why);
    }
}
