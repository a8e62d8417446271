//! The program `roxe`: runs programs on the devices, shows the devices and the settings, proves
//! that they work, reads captures.
//!
//! Here: the command line and nothing else. Every subcommand is a module that returns what went
//! wrong as an error whose text says what happened, to what, and what to do.
//!
//! - `roxe run`: `run.rs`, the order of things; `library.rs`, what the loader of the program shall
//!   find, and the libraries that this program carries; `program.rs`, what may be wrong with the
//!   program, and its file; `private_dir.rs`, files that only this user can write;
//!   `checkers.rs`, valgrind and the sanitizers; `stats.rs`, counters of processes that were
//!   killed; `bypass.rs`, programs that do not load our library, and `asks.rs`, which should;
//!   `unused.rs`, those that load it and open no device;
//!   `view.rs` and `view/`, `/sys/class/infiniband`, and the libraries of others
//! - `roxe demo`: `demo/`: `case.rs` what both processes agree on, `connection.rs` what both do,
//!   `client.rs`, `server.rs`
//! - `roxe env`, `roxe install-lib`: `env.rs`, `install_lib.rs`, for programs that are started
//!   without `roxe run`
//! - `roxe devices`, `roxe config`, `roxe rules`, `roxe counters`, `roxe doctor`: `devices.rs`,
//!   `config.rs`, `rules.rs`, `doctor.rs`
//! - `roxe generate-docs`: `manual.rs`
//! - `roxe top`, `roxe metrics`: `top.rs`, `metrics.rs`; `status.rs`, what processes say
//! - `roxe dump`: `dump.rs`
//! - `roxe drill`, `roxe conform`: `drill.rs`; `roxe fuzz`: `fuzz.rs`;
//!   `roxe replay`: `replay.rs`
//! - `child.rs`: processes of `demo`, `drill` and the like that end with them
//! - `output.rs`: tables; lines of `drill`, `conform`, `fuzz` and `replay`, whose reader may go
//!   away
//! - `progress.rs`: how far `conform`, `drill`, `fuzz` and `check-peer` are, on a terminal
//! - `roxe peer`, `roxe check-peer`: `peer.rs`, `check_peer.rs`; `token.rs`, what a controller has
//!   to show; what they do: the package `roxe-peer`
#![forbid(unsafe_code)]

mod asks;
mod bypass;
mod check_peer;
mod checkers;
mod child;
mod config;
mod demo;
mod devices;
mod doctor;
mod drill;
mod dump;
mod env;
mod fuzz;
mod install_lib;
mod library;
mod manual;
mod metrics;
mod output;
mod peer;
mod private_dir;
mod program;
mod progress;
mod replay;
mod rules;
mod run;
mod stats;
mod status;
mod token;
mod top;
mod unused;
mod view;

use clap::{CommandFactory, Parser, Subcommand};
use std::error::Error;
use std::process::ExitCode;

/// An RDMA network card (RoCEv2) made of software, for unmodified verbs programs.
#[derive(Debug, Parser)]
#[command(name = "roxe", version, after_help = FIRST_STEPS)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What `roxe --help` ends with.
const FIRST_STEPS: &str = "\
First steps:
  roxe demo                                     see that it works here
  roxe run -- ibv_rc_pingpong -g 0              a server, and in another terminal
  roxe run -- ibv_rc_pingpong -g 0 127.0.0.1    its client";

/// What `roxe run --help` ends with.
const RUN_EXAMPLES: &str = "\
Examples:
  roxe run -- ibv_devinfo
  roxe run --netdev eth0 -- ib_write_bw -d roxe0 192.0.2.1
  roxe run --faults 'seed=1; drop 3%' --capture run-%p.pcapng -- rping -c -a 127.0.0.1

Exit status: that of the program; 127 if there is no such program, 126 if it cannot be started,
125 if roxe cannot be set up for it.";

/// What `roxe env --help` ends with.
const ENV_EXAMPLES: &str = "\
Examples:
  eval \"$(roxe env)\"; ibv_devinfo
  roxe env --format github >> \"$GITHUB_ENV\"
  roxe env --check --format cmake > roxe.cmake    and in CMakeLists.txt:
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${CMAKE_SOURCE_DIR}/roxe.cmake)";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run an unmodified verbs program on roxe's devices.
    ///
    /// The program is started with LD_LIBRARY_PATH set, so that it finds roxe's libibverbs.so.1 and
    /// librdmacm.so.1; it keeps this process id, and its exit status is what you see.
    #[command(override_usage = "roxe run [OPTIONS] -- PROGRAM [ARGS]...", after_help = RUN_EXAMPLES)]
    Run(run::Args),
    /// Print the variables that `roxe run` would set, for a shell, CI or an IDE.
    #[command(after_help = ENV_EXAMPLES)]
    Env(env::Args),
    /// Put roxe's libibverbs.so.1 and librdmacm.so.1 into a folder of your own.
    InstallLib(install_lib::Args),
    /// Say what works on this host, what does not, and what to do about it.
    Doctor(doctor::Args),
    /// Show that everything works: two processes, every operation, every byte checked, with a table
    /// of the speed.
    ///
    /// Takes some seconds. The processes talk over the first device, which is the loopback
    /// interface unless ROXE_NETDEV names another.
    Demo(demo::Args),
    /// List the devices that programs find, and their addresses.
    Devices(devices::Args),
    /// List every setting: what it does, its value, and where that comes from.
    Config(config::Args),
    /// List the rules of the checker (run --check): what they find, and where it is written.
    Rules(rules::Args),
    /// List what devices count (run --stats), in words.
    Counters,
    /// Show what the queue pairs of running programs do.
    Top(top::Args),
    /// Print the numbers of running programs as Prometheus reads them, or serve them.
    Metrics(metrics::Args),
    /// Print the RoCEv2 packets of a capture (pcap or pcapng), one line each.
    Dump(dump::Args),
    /// Run scripts of packets against a card: what it must answer, packet by packet.
    Drill(drill::DrillArgs),
    /// Run the catalogue of conformance cases against a card, and report by clause.
    Conform(drill::ConformArgs),
    /// Do by verbs what a controller on another host says: the agent beside a card under test.
    ///
    /// Uses the libibverbs of this host, whatever card that has; under `roxe run`, roxe's. Prints
    /// where it listens and the token that a controller has to show (docs/reference/peer.md).
    Peer(peer::Args),
    /// Check by verbs whether this host's card and another one understand each other.
    ///
    /// Every service, operation, size and path MTU, in both directions, every byte compared. On the
    /// other host runs `roxe peer`; here, the card that this host's libibverbs has, which is roxe's
    /// under `roxe run -- roxe check-peer ...`.
    CheckPeer(check_peer::Args),
    /// Look for what another card does differently: cases out of a seed, compared with roxe's
    /// transport, each difference made short and written as a script.
    Fuzz(fuzz::Args),
    /// Send the requests of a capture to another card, and tell what comes back.
    ///
    /// Queue pairs and memory like those in the capture are made there; their numbers, keys and
    /// addresses take the places of the recorded ones.
    Replay(replay::Args),
    /// Write man pages and completions for shells to a folder.
    #[command(hide = true)]
    GenerateDocs(manual::Args),
    /// The other process of `demo`.
    #[command(hide = true)]
    DemoServer,
    /// The process that prints what is left of those that `run --stats` has started.
    #[command(hide = true)]
    TellStats(stats::Args),
    /// The process that says so if the program of `run` loads another libibverbs.
    #[command(hide = true)]
    TellBypass(bypass::Args),
    /// The child process in which `run` tries what may go wrong.
    #[command(hide = true)]
    ProbeView,
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) if args.asks_for_fault_rules() => finish("run", run::tell_fault_rules()),
        Command::Run(args) => {
            let error = run::run(&args);
            eprintln!("roxe run: {error}");
            ExitCode::from(error.exit_code())
        }
        Command::Demo(args) => finish("demo", demo::run(&args)),
        Command::Env(args) => finish("env", env::run(&args)),
        Command::InstallLib(args) => finish("install-lib", install_lib::run(&args)),
        Command::Doctor(args) => finish("doctor", doctor::run(&args)),
        Command::Devices(args) => finish("devices", devices::run(&args)),
        Command::Config(args) => finish("config", config::run(&args)),
        Command::Rules(args) => finish("rules", rules::run(&args)),
        Command::GenerateDocs(args) => finish("generate-docs", manual::run(&args, &Cli::command())),
        Command::Counters => finish("counters", devices::counters()),
        Command::Top(args) => finish("top", top::run(&args)),
        Command::Metrics(args) => finish("metrics", metrics::run(&args)),
        Command::Dump(args) => finish("dump", dump::run(&args)),
        Command::Drill(args) => finish("drill", drill::drill(&args)),
        Command::Conform(args) => finish("conform", drill::conform(&args)),
        Command::Replay(args) => finish("replay", replay::run(&args)),
        Command::Fuzz(args) => finish("fuzz", fuzz::run(&args)),
        Command::Peer(args) => finish("peer", peer::run(&args)),
        Command::CheckPeer(args) => finish("check-peer", check_peer::run(&args)),
        Command::TellStats(args) => finish("tell-stats", stats::tell(&args)),
        Command::TellBypass(args) => finish("tell-bypass", bypass::tell(&args)),
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

/// Whether the reader of our output went away, as `head` does: nothing to report, and nobody to
/// report it to.
fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn an_unknown_option_is_not_taken_for_a_program() {
        let error = Cli::try_parse_from(["roxe", "run", "--netdv", "lo", "--", "ls"]).unwrap_err().to_string();
        assert!(error.contains("unexpected argument '--netdv'") && error.contains("'--netdev'"), "{error}");
        let cli = Cli::try_parse_from(["roxe", "run", "--", "--odd-name", "-x"]).unwrap();
        let Command::Run(args) = cli.command else { panic!("not run") };
        assert_eq!(args.command(), ["--odd-name", "-x"]);
    }

    #[test]
    fn help_is_there_by_every_name_and_shows_first_steps() {
        for words in [&["roxe", "--help"][..], &["roxe", "help"], &["roxe", "-h"]] {
            let text = Cli::try_parse_from(words).unwrap_err().to_string();
            assert!(text.contains("roxe run -- ibv_rc_pingpong") && !text.contains("demo-server"), "{text}");
        }
        let text = Cli::try_parse_from(["roxe", "help", "run"]).unwrap_err().to_string();
        assert!(text.contains("Examples:") && text.contains("Exit status:"), "{text}");
        assert!(Cli::command().render_version().starts_with("roxe "));
    }
}
