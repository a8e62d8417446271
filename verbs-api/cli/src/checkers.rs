//! What valgrind and the sanitizers have to know about us, so that they report the mistakes of a
//! program and nothing else.
//!
//! `roxe run` hands it over in the variables in which these tools take options, in front of or
//! behind what the user set there, which stays in force. Our side is not built for ThreadSanitizer:
//! it sees our allocations and copies, but not our locks. The files in `verbs-api/cli/suppressions`
//! say more. Touches files in the folder that it is given.

use crate::private_dir::{fnv1a, place};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::{env, fs};

const VALGRIND: &str = include_str!("../suppressions/valgrind.supp");
const THREAD_SANITIZER: &str = include_str!("../suppressions/tsan.supp");

/// AddressSanitizer refuses to run behind another preloaded library; ours works behind it and in
/// front of it.
const ANY_LINK_ORDER: &str = "verify_asan_link_order=0";

/// The variables to set: names and values. Writes the files that they name to `folder`, which is
/// private. `preloads` says whether LD_PRELOAD names libraries of ours.
pub(crate) fn variables(folder: &Path, preloads: bool) -> io::Result<Vec<(&'static str, OsString)>> {
    let valgrind = place(folder, "valgrind.supp", VALGRIND)?;
    let mut option = OsString::from("--suppressions=");
    option.push(valgrind);
    let mut variables = vec![
        ("VALGRIND_OPTS", joined(option, " ", env::var_os("VALGRIND_OPTS"))),
        ("TSAN_OPTIONS", thread_sanitizer(folder, env::var_os("TSAN_OPTIONS"))?),
    ];
    if preloads {
        variables.push(("ASAN_OPTIONS", joined(ANY_LINK_ORDER.into(), ":", env::var_os("ASAN_OPTIONS"))));
    }
    Ok(variables)
}

/// `ours`, then what the user set, which these tools let win.
fn joined(mut ours: OsString, separator: &str, users: Option<OsString>) -> OsString {
    if let Some(users) = users.filter(|users| !users.is_empty()) {
        ours.push(separator);
        ours.push(users);
    }
    ours
}

/// TSAN_OPTIONS with our suppressions. The last file that is named counts, so one of the user's
/// goes into a file with ours.
fn thread_sanitizer(folder: &Path, users: Option<OsString>) -> io::Result<OsString> {
    let users = users.unwrap_or_default();
    let Some(theirs) = named_suppressions(&users.to_string_lossy()) else {
        let mut option = OsString::from("suppressions=");
        option.push(place(folder, "tsan.supp", THREAD_SANITIZER)?);
        return Ok(joined(option, ":", Some(users)));
    };
    // Which file is meant and that it cannot be read is for the sanitizer to say.
    let Ok(text) = fs::read_to_string(&theirs) else { return Ok(users) };
    let text = format!("{THREAD_SANITIZER}\n{text}");
    let both = place(folder, &format!("tsan-{:016x}.supp", fnv1a(text.as_bytes())), &text)?;
    let mut option = OsString::from("suppressions=");
    option.push(both);
    Ok(joined(users, ":", Some(option)))
}

/// The file that the last `suppressions=` of a sanitizer's options names.
fn named_suppressions(options: &str) -> Option<PathBuf> {
    let words = options.split([' ', ',', ':', '\n', '\t', '\r']);
    let name = words.filter_map(|word| word.strip_prefix("suppressions=")).next_back()?;
    Some(PathBuf::from(name.trim_matches(['"', '\''])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process;

    fn scratch(name: &str) -> PathBuf {
        let path = env::temp_dir().join(format!("roxe-cli-checkers-{}-{name}", process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn what_the_user_set_stays_and_stands_behind_ours() {
        let ours = || OsString::from("--ours");
        assert_eq!(joined(ours(), " ", None), "--ours");
        assert_eq!(joined(ours(), " ", Some("".into())), "--ours");
        assert_eq!(joined(ours(), " ", Some("--leak-check=full".into())), "--ours --leak-check=full");
    }

    #[test]
    fn suppressions_of_the_user_are_joined_with_ours() {
        let folder = scratch("joined");
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
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_of_the_user_that_cannot_be_read_is_left_to_the_sanitizer() {
        let users = OsString::from("suppressions=/nowhere/at/all");
        assert_eq!(thread_sanitizer(Path::new("/nowhere"), Some(users.clone())).unwrap(), users);
    }
}
