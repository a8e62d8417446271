//! The token of an agent (`roxe peer`), read from a file or the environment because every user of a
//! host sees the arguments of its processes (`ps`).

use roxe_base::config::variable;
use roxe_peer::client::Target;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(crate) const VARIABLE: &str = "ROXE_PEER_TOKEN";

/// Returns `target` with its own token, else with that in `file`, else with that of the
/// environment. `file` must be valid in any case.
pub(crate) fn with_token(target: &Target, file: Option<&Path>) -> Result<Target, String> {
    let from_file = file.map(read).transpose()?;
    if !target.token.is_empty() {
        eprintln!(
            "roxe: warning: every user of this host can read a token in the arguments (ps); use {VARIABLE} or \
             --token-file"
        );
        return Ok(target.clone());
    }
    let address = &target.address;
    let token = from_file.map_or_else(from_environment, |token| Ok(Some(token)))?;
    let missing =
        || format!("no token for {address}; set {VARIABLE} or --token-file to the one that `roxe peer` printed there");
    Ok(Target { token: token.ok_or_else(missing)?, address: address.clone() })
}

/// Returns the token in the environment; an empty variable holds none.
pub(crate) fn from_environment() -> Result<Option<String>, String> {
    variable(VARIABLE).map(|value| value.into_string().map_err(|_| format!("{VARIABLE} is not UTF-8"))).transpose()
}

/// Removes the token from an argument `TOKEN@HOST`, for reports.
pub(crate) fn without_token(argument: String) -> String {
    argument.rsplit_once('@').map_or_else(
        || argument.clone(),
        |(before, host)| {
            let scheme = before.find("://").map_or("", |at| &before[..at + 3]);
            format!("{scheme}{host}")
        },
    )
}

fn read(file: &Path) -> Result<String, String> {
    let failed = |why: &dyn std::fmt::Display| format!("cannot use the token file {}: {why}", file.display());
    if fs::metadata(file).map_err(|cause| failed(&cause))?.mode() & 0o077 != 0 {
        return Err(failed(&"other users can read it; chmod 600 FILE"));
    }
    let text = fs::read_to_string(file).map_err(|cause| failed(&cause))?;
    match text.trim() {
        "" => Err(failed(&"it is empty")),
        token => Ok(token.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::Scratch;

    #[test]
    fn token_is_removed_from_arguments() {
        for (argument, shown) in [
            ("0123@192.0.2.7:1", "192.0.2.7:1"),
            ("peer://0123@192.0.2.7", "peer://192.0.2.7"),
            ("peer://192.0.2.7", "peer://192.0.2.7"),
            ("atomic", "atomic"),
        ] {
            assert_eq!(without_token(argument.to_owned()), shown);
        }
    }

    #[test]
    fn token_file_missing_or_readable_by_others_is_refused() {
        let scratch = Scratch::new("token");
        let file = scratch.file("token", "ab12\n", 0o600);
        let target = "host:7".parse().unwrap();
        let expected = Target { token: "ab12".to_owned(), address: "host:7".to_owned() };
        assert_eq!(with_token(&target, Some(&file)).unwrap(), expected);
        scratch.file("token", "ab12\n", 0o640);
        assert!(with_token(&target, Some(&file)).unwrap_err().contains("chmod 600"));
        fs::remove_file(&file).unwrap();
        assert!(with_token(&target, Some(&file)).unwrap_err().contains("cannot use the token file"));
    }
}
