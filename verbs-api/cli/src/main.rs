//! The program `roxe`: shows the devices, runs programs on them, proves that they work, reads captures.
//!
//! Here: the command line and nothing else. Every subcommand is a module that returns what went wrong as an error whose
//! text says what to do.
#![forbid(unsafe_code)]

mod checkers;
mod config;
mod demo;
mod devices;
mod dump;
mod run;
mod stats;
mod table;
mod view;

use clap::{Parser, Subcommand};
use std::error::Error;
use std::process::ExitCode;

/// An RDMA network card (RoCEv2) made of software.
#[derive(Debug, Parser)]
#[command(version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run an unmodified verbs program on roxe's devices.
    ///
    /// The program is started with LD_LIBRARY_PATH set, so that it finds our libibverbs.so.1 and librdmacm.so.1; it
    /// keeps this process id, and its exit status is what you see.
    #[command(override_usage = "roxe run [OPTIONS] -- PROGRAM [ARGS]...")]
    Run(run::Args),
    /// Show that everything works: two processes, every operation, every byte checked, with a table of the speed.
    Demo(demo::Args),
    /// List the devices and their addresses.
    Devices,
    /// List every setting: what it does, its value, and where that comes from.
    Config,
    /// Print the RoCEv2 packets of a capture (pcap or pcapng), one line each.
    Dump(dump::Args),
    /// The other process of `demo`.
    #[command(hide = true)]
    DemoServer,
    /// The process that prints what is left of those that `run --stats` has started.
    #[command(hide = true)]
    TellStats(stats::Args),
    /// The child process in which `run` tries what may go wrong.
    #[command(hide = true)]
    ProbeView,
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => {
            let error = run::run(&args);
            eprintln!("roxe run: {error}");
            ExitCode::from(error.exit_code())
        }
        Command::Demo(args) => finish("demo", demo::run(&args)),
        Command::Devices => finish("devices", devices::run()),
        Command::Config => finish("config", config::run()),
        Command::Dump(args) => finish("dump", dump::run(&args)),
        Command::TellStats(args) => finish("tell-stats", stats::tell(&args)),
        Command::ProbeView => finish("probe-view", view::try_out()),
        Command::DemoServer => finish("demo (server)", demo::serve()),
    }
}

/// The exit status of a subcommand: 0, or 1 after the error has been printed.
fn finish(name: &str, result: Result<(), Box<dyn Error>>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if is_broken_pipe(&*error) {
        return ExitCode::SUCCESS;
    }
    eprintln!("roxe {name}: {error}");
    ExitCode::FAILURE
}

/// Whether the reader of our output went away, as `head` does: nothing to report, and nobody to report it to.
fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn arguments_behind_the_program_are_the_programs() {
        let cli = Cli::try_parse_from(["roxe", "run", "--netdev", "eth0", "prog", "--netdev", "x", "-h"]).unwrap();
        let Command::Run(args) = cli.command else { panic!("not run") };
        assert_eq!(args.command(), ["prog", "--netdev", "x", "-h"]);
        assert!(Cli::try_parse_from(["roxe", "run", "--", "prog", "--version"]).is_ok());
        assert!(Cli::try_parse_from(["roxe", "run"]).is_err());
    }
}
