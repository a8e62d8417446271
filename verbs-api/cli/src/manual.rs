//! `roxe generate-docs DIR`: man pages and completions for shells, from the command line's own
//! description, for those who make packages.
//!
//! Touches that folder.

use clap::Command;
use clap_complete::Shell;
use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;

/// What `roxe generate-docs` was asked to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to put them; made if need be.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Completes the program behind `roxe run --` as a shell does, and its arguments where the package
/// bash-completion is there; all else is left to what was generated.
const PROGRAM_IN_BASH: &str = "
_roxe_or_program() {
    local at
    if [[ ${COMP_WORDS[1]} == run ]]; then
        for ((at = 2; at < COMP_CWORD; at++)); do
            if [[ ${COMP_WORDS[at]} == -- ]]; then
                if ((at + 1 == COMP_CWORD)); then
                    COMPREPLY=($(compgen -c -- \"${COMP_WORDS[COMP_CWORD]}\"))
                elif declare -F _command_offset >/dev/null; then
                    _command_offset $((at + 1))
                else
                    COMPREPLY=()
                fi
                return
            fi
        done
    fi
    _roxe \"$@\"
}
complete -F _roxe_or_program -o bashdefault -o default roxe
";

/// Writes `roxe.1`, a page for each subcommand, and completions under the names that the shells
/// look for.
pub(crate) fn run(args: &Args, command: &Command) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(&args.folder)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let path = clap_complete::generate_to(shell, &mut visible(command), "roxe", &args.folder)?;
        if shell == Shell::Bash {
            OpenOptions::new().append(true).open(path)?.write_all(PROGRAM_IN_BASH.as_bytes())?;
        }
    }
    // A page for each `roxe help SUBCOMMAND` would say nothing.
    clap_mangen::generate_to(visible(command).disable_help_subcommand(true), &args.folder)?;
    Ok(())
}

/// The program without the subcommands that it calls itself.
fn visible(command: &Command) -> Command {
    let mut visible = Command::new("roxe")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned());
    if let Some(about) = command.get_about() {
        visible = visible.about(about.clone());
    }
    if let Some(help) = command.get_after_help() {
        visible = visible.after_help(help.clone());
    }
    visible
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn pages_and_completions_show_no_internal_command() {
        let folder = std::env::temp_dir().join(format!("roxe-cli-manual-{}", std::process::id()));
        run(&Args { folder: folder.clone() }, &crate::Cli::command()).unwrap();
        let mut names = Vec::new();
        for file in fs::read_dir(&folder).unwrap() {
            let path = file.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            for internal in ["demo-server", "tell-stats", "tell-bypass", "probe-view", "generate-docs"] {
                assert!(
                    !text.contains(internal) && !text.contains(&internal.replace('-', "\\-")),
                    "{path:?} {internal}"
                );
            }
            names.push(path.file_name().unwrap().to_str().unwrap().to_owned());
        }
        assert!(names.iter().all(|name| !name.contains("help")), "{names:?}");
        assert!(["roxe.1", "roxe-run.1", "roxe-peer.1"].iter().all(|page| names.iter().any(|name| name == page)));
        let page = fs::read_to_string(folder.join("roxe.1")).unwrap();
        assert!(page.contains("First steps") && page.contains(env!("CARGO_PKG_VERSION")), "{page}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn bash_completes_programs_behind_run() {
        let folder = std::env::temp_dir().join(format!("roxe-cli-completion-{}", std::process::id()));
        run(&Args { folder: folder.clone() }, &crate::Cli::command()).unwrap();
        let complete = |words: &str, at: usize| {
            let script = format!(
                "source {}; COMP_WORDS=({words}); COMP_CWORD={at}; _roxe_or_program roxe; echo \"${{COMPREPLY[*]}}\"",
                folder.join("roxe.bash").display()
            );
            let output = std::process::Command::new("bash").args(["--norc", "-c", &script]).output().unwrap();
            String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(complete("roxe run -- mkdi", 3).contains(&"mkdir".to_owned()));
        assert!(complete("roxe run --net", 2).contains(&"--netdev".to_owned()));
        assert!(complete("roxe dev", 1).contains(&"devices".to_owned()));
        fs::remove_dir_all(folder).unwrap();
    }
}
