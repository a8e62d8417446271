//! Fuzz target: drill scripts, run against a card in this process.

use roxe_drill::{Script, VirtualCard, run};

/// Maximum length in bytes of a script that is run: longer ones only take more time.
const MAX_LEN: usize = 4096;

/// The input is a script.
///
/// Properties: parsing and running never panic; errors have a text; the names of cases are unique.
///
/// # Panics
/// If a property does not hold.
pub fn script(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let script = match Script::parse("fuzz", text) {
        Ok(script) => script,
        Err(error) => return assert!(error.to_string().starts_with("fuzz:")),
    };
    let cases = script.cases();
    assert!(!cases.is_empty() && !script.title().is_empty());
    // Scripts with `repeat` are not run, because large counts take too long.
    if text.len() <= MAX_LEN && !text.contains("repeat") {
        let outcome = run("fuzz", &cases[0], &mut VirtualCard::default());
        assert!(outcome.verdict.failure().is_none_or(|failure| !failure.to_string().is_empty()));
    }
}
