//! `roxe generate-docs DIR`: man pages and completions for shells, from the command line's own
//! description, for those who make packages.
//!
//! Touches that folder.

use clap::Command;
use clap_complete::Shell;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

/// What `roxe generate-docs` was asked to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to put them; made if need be.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Writes `roxe.1`, a page for each subcommand, and completions under the names that the shells
/// look for.
pub(crate) fn run(args: &Args, mut command: Command) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(&args.folder)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "roxe", &args.folder)?;
    }
    // A page for each `roxe help SUBCOMMAND` would say nothing.
    clap_mangen::generate_to(command.disable_help_subcommand(true), &args.folder)?;
    Ok(())
}
