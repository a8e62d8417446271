//! Variables that make valgrind and the sanitizers report errors of a program, and no false ones
//! about roxe's library.
//!
//! Options that the user set in these variables stay in force. Roxe is not built for
//! ThreadSanitizer, which sees its allocations and copies, but not its locks. The files in
//! `verbs-api/cli/suppressions` explain each suppression.

use crate::files::{fnv1a, place};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::{env, fs};

const VALGRIND: &str = include_str!("../suppressions/valgrind.supp");
const THREAD_SANITIZER: &str = include_str!("../suppressions/tsan.supp");

/// AddressSanitizer refuses to run after another preloaded library; roxe's works in either order.
const ANY_LINK_ORDER: &str = "verify_asan_link_order=0";

/// Returns names and values of the variables, and writes the files that they name to `folder`.
/// `preloads` is true if LD_PRELOAD names roxe's libraries.
pub(crate) fn variables(folder: &Path, preloads: bool) -> io::Result<Vec<(&'static str, OsString)>> {
    let valgrind = place(folder, "valgrind.supp", VALGRIND)?;
    let mut option = OsString::from("--suppressions=");
    option.push(valgrind);
    let mut variables = vec![
        ("VALGRIND_OPTS", join_options(option, " ", env::var_os("VALGRIND_OPTS"))),
        ("TSAN_OPTIONS", thread_sanitizer(folder, env::var_os("TSAN_OPTIONS"))?),
    ];
    if preloads {
        variables.push(("ASAN_OPTIONS", join_options(ANY_LINK_ORDER.into(), ":", env::var_os("ASAN_OPTIONS"))));
    }
    Ok(variables)
}

/// Returns `ours`, then the user's options, which take precedence. Returns the user's options alone
/// if they contain `ours`, as after an earlier `roxe env`.
fn join_options(mut ours: OsString, separator: &str, users: Option<OsString>) -> OsString {
    if let Some(users) = users.filter(|users| !users.is_empty()) {
        if users.to_string_lossy().split(separator).any(|word| ours == *word) {
            return users;
        }
        ours.push(separator);
        ours.push(users);
    }
    ours
}

/// Returns TSAN_OPTIONS with roxe's suppressions. Only the last file named there counts, so a file
/// of the user is merged with roxe's.
fn thread_sanitizer(folder: &Path, users: Option<OsString>) -> io::Result<OsString> {
    let users = users.unwrap_or_default();
    let Some(theirs) = named_suppressions(&users.to_string_lossy()) else {
        let mut option = OsString::from("suppressions=");
        option.push(place(folder, "tsan.supp", THREAD_SANITIZER)?);
        return Ok(join_options(option, ":", Some(users)));
    };
    // The sanitizer itself reports an unreadable file.
    let Ok(text) = fs::read_to_string(&theirs) else { return Ok(users) };
    if text.starts_with(THREAD_SANITIZER) {
        return Ok(users);
    }
    let text = format!("{THREAD_SANITIZER}\n{text}");
    let both = place(folder, &format!("tsan-{:016x}.supp", fnv1a(text.as_bytes())), &text)?;
    let mut option = OsString::from("suppressions=");
    option.push(both);
    Ok(join_options(users, ":", Some(option)))
}

/// Returns the file that the last `suppressions=` of a sanitizer's options names.
fn named_suppressions(options: &str) -> Option<PathBuf> {
    let words = options.split([' ', ',', ':', '\n', '\t', '\r']);
    let name = words.filter_map(|word| word.strip_prefix("suppressions=")).next_back()?;
    Some(PathBuf::from(name.trim_matches(['"', '\''])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::Scratch;

    #[test]
    fn options_of_the_user_follow_ours() {
        let ours = || OsString::from("--ours");
        assert_eq!(join_options(ours(), " ", None), "--ours");
        assert_eq!(join_options(ours(), " ", Some("".into())), "--ours");
        assert_eq!(join_options(ours(), " ", Some("--leak-check=full".into())), "--ours --leak-check=full");
        assert_eq!(join_options(ours(), " ", Some("--ours --leak-check=full".into())), "--ours --leak-check=full");
    }

    #[test]
    fn suppressions_of_the_user_are_merged_with_ours() {
        let folder = Scratch::new("checkers");
        let theirs = folder.join("theirs");
        fs::write(&theirs, "race:their_function\n").unwrap();
        let alone = thread_sanitizer(&folder, Some("halt_on_error=1".into())).unwrap();
        assert!(alone.to_str().unwrap().ends_with("tsan.supp:halt_on_error=1"), "{alone:?}");
        let users = format!("suppressions='{}' halt_on_error=1", theirs.display());
        let both = thread_sanitizer(&folder, Some(users.clone().into())).unwrap();
        let both = both.to_str().unwrap();
        assert!(both.starts_with(&users), "{both}");
        let text = fs::read_to_string(named_suppressions(both).unwrap()).unwrap();
        assert!(text.contains("race:their_function") && text.contains(THREAD_SANITIZER), "{text}");
        assert_eq!(thread_sanitizer(&folder, Some(both.into())).unwrap(), both);
    }

    #[test]
    fn unreadable_suppressions_are_left_to_the_sanitizer() {
        let users = OsString::from("suppressions=/nowhere/at/all");
        assert_eq!(thread_sanitizer(Path::new("/nowhere"), Some(users.clone())).unwrap(), users);
    }
}
