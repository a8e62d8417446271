//! The README says what the code does where a test can compare the two.

use roxe_provider::config::KNOBS;

const README: &str = include_str!("../../README.md");

#[test]
fn the_table_of_knobs_is_the_one_in_the_code() {
    let rows: Vec<&str> = README.lines().filter(|line| line.starts_with("| `ROXE_")).collect();
    let wanted: Vec<String> = KNOBS.iter().map(|k| format!("| `{}` | {} | {} |", k.name, k.default, k.help)).collect();
    assert_eq!(rows, wanted);
}
