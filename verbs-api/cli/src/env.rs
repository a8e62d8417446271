//! `roxe env`: the variables that `roxe run` would set, for those who start programs themselves: a
//! shell, GitHub Actions, CMake's ctest, an IDE.
//!
//! Without the view, which is a namespace and no variable. Touches the file system as `roxe run`
//! does.

use crate::library::link_folder;
use crate::private_dir::base_folder;
use crate::run::{Options, set_variables};
use roxe_base::private_dir;
use serde_json::{Map, Value};
use std::error::Error;
use std::io::{Write, stdout};
use std::path::Path;
use std::process::Command;

/// What `roxe env` was asked to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Who reads it: sh (for eval), github (for $GITHUB_ENV), cmake (for include() and
    /// TEST_INCLUDE_FILES), json.
    #[arg(long, value_enum, default_value = "sh")]
    format: Format,
    #[command(flatten)]
    options: Options,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Sh,
    Github,
    Cmake,
    Json,
}

/// Prints the variables.
pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    // Nothing is started: a command is what the variables are collected in.
    let mut command = Command::new("");
    let library = set_variables(&args.options, &mut command)?;
    check_lasts(&link_folder(&library)?)?;
    let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let pairs = set.map(|(name, value)| match (name.to_str(), value.to_str()) {
        (Some(name), Some(value)) => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{} cannot be printed: it is not UTF-8", name.display())),
    });
    let text = format(args.format, &pairs.collect::<Result<Vec<_>, _>>()?)?;
    Ok(stdout().write_all(text.as_bytes())?)
}

/// Refuses a `folder` whose name another user can take when the system has removed it: what is
/// printed here may be kept in a file.
fn check_lasts(folder: &Path) -> Result<(), String> {
    let of_run = base_folder().is_ok_and(|base| folder.starts_with(base));
    if of_run && private_dir::check(folder).is_ok_and(|folder| folder.is_in_shared) {
        return Err(format!(
            "the libraries would lie in {}, which other users can make when it is gone (a restart removes it).\n  \
             Set HOME or XDG_CACHE_HOME to a folder that only you can write.",
            folder.display()
        ));
    }
    Ok(())
}

fn format(format: Format, pairs: &[(String, String)]) -> Result<String, String> {
    if format == Format::Json {
        let map: Map<String, Value> = pairs.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
        return Ok(format!("{:#}\n", Value::from(map)));
    }
    pairs.iter().map(|(name, value)| line(format, name, value)).collect()
}

fn line(format: Format, name: &str, value: &str) -> Result<String, String> {
    match format {
        Format::Github if value.contains('\n') => {
            Err(format!("{name} has more than one line, which $GITHUB_ENV cannot hold"))
        }
        Format::Github => Ok(format!("{name}={value}\n")),
        Format::Cmake => Ok(format!("set(ENV{{{name}}} [==[{value}]==])\n")),
        _ => Ok(format!("export {name}='{}'\n", value.replace('\'', "'\\''"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formatted(how: Format, value: &str) -> Result<String, String> {
        format(how, &[("NAME".to_owned(), value.to_owned())])
    }

    #[test]
    fn each_reader_gets_its_own_quotes() {
        assert_eq!(formatted(Format::Sh, "it's $x").unwrap(), "export NAME='it'\\''s $x'\n");
        assert_eq!(formatted(Format::Github, "a b").unwrap(), "NAME=a b\n");
        assert_eq!(formatted(Format::Cmake, "a;\"b\"").unwrap(), "set(ENV{NAME} [==[a;\"b\"]==])\n");
        assert_eq!(formatted(Format::Json, "a\"b").unwrap(), "{\n  \"NAME\": \"a\\\"b\"\n}\n");
    }

    #[test]
    fn a_value_of_several_lines_is_no_line_of_github() {
        assert!(formatted(Format::Github, "a\nEVIL=b").unwrap_err().contains("NAME"));
    }
}
