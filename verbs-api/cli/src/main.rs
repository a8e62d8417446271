//! The program `roxe`. Each subcommand has the module of its name; this file is the command line.
//!
//! - `run.rs` is the start of `roxe run`: `library.rs` finds the library, `program.rs` and
//!   `asks.rs` inspect the program's file, `view.rs` shows `/sys/class/infiniband`, `checkers.rs`
//!   sets up valgrind and sanitizers. Background processes report what the program itself cannot:
//!   `stats.rs` the counters of killed processes, `bypass.rs` other libraries, `unused.rs` that no
//!   device was opened
//! - `drill.rs` is also `roxe conform`; `roxe_drill`, `roxe_peer` and `roxe_dissect` do the work of
//!   `drill`, `conform`, `fuzz`, `replay`, `peer`, `check-peer`, `dump` and `judge`
//! - shared: `files.rs`, `child.rs`, `output.rs`, `progress.rs`, `status.rs`, `token.rs`
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
mod faults;
mod files;
mod fuzz;
mod help;
mod install_lib;
mod judge;
mod lab;
mod library;
mod metrics;
mod output;
mod peer;
mod program;
mod progress;
mod rdma;
mod replay;
mod rules;
mod run;
mod stats;
mod status;
mod sweep;
mod token;
mod top;
mod unused;
mod view;

use clap::{CommandFactory, FromArgMatches as _, Parser, Subcommand};
use output::Result;
use std::io;
use std::process::ExitCode;

/// A RoCEv2 network card made of software, for unmodified verbs programs
#[derive(Debug, Parser)]
#[command(name = "roxe", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a verbs program with roxe as its card.
    ///
    /// The program finds roxe's libibverbs.so.1 and librdmacm.so.1 by LD_LIBRARY_PATH. It keeps
    /// this process id, and its exit status is that of roxe run.
    #[command(override_usage = "roxe run [OPTIONS] -- PROGRAM [ARGS]...")]
    Run(run::Args),
    /// Print the variables of roxe run for a shell, CI or an IDE.
    Env(env::Args),
    /// Copy libibverbs.so.1 and librdmacm.so.1 to a folder.
    InstallLib(install_lib::Args),
    /// Run a command or a scenario on several hosts inside this machine.
    ///
    /// Each host has a network stack, a name (host1, host2, ...), an address and a roxe card of its
    /// own; a bridge connects them. The command runs on every host under roxe run, with LAB_HOST
    /// (its number), LAB_HOSTS, LAB_NAMES and LAB_ADDRS in its environment. The first host that
    /// fails ends the others; the exit status is its. A scenario (FILE.toml) has a command for each
    /// host, an order and links that are cut and healed (roxe help several-hosts).
    #[command(
        override_usage = "roxe lab [OPTIONS] -- COMMAND [ARGS]...\n       roxe lab [OPTIONS] FILE.toml\n       roxe lab --shell HOST [-- COMMAND [ARGS]...]\n       roxe lab --cut HOST | --heal HOST"
    )]
    Lab(lab::Args),
    /// Try every error path of a verbs program.
    ///
    /// A first run counts calls, completions, packets and connections. Each further run has one
    /// fault: a call or a completion fails, an event is raised, a packet is lost. Each run has
    /// namespaces and a time limit of its own. Crashes, hangs, misuse, leaks and failures that the
    /// program does not notice are grouped by the place where the program broke, each with the
    /// command that repeats it. The exit status is 0 if nothing was found, otherwise 1.
    #[command(override_usage = "roxe sweep [OPTIONS] -- PROGRAM [ARGS]...")]
    Sweep(sweep::Args),
    /// Print or replace the fault rules of a running program.
    ///
    /// The program must have been started with roxe run --faults none, or with rules of the same
    /// kind: about packets, or about calls. The program announces the new rules on standard error,
    /// and restarts their counts and times.
    Faults(faults::Args),
    /// Check this host, and print a remedy for each failed check.
    Doctor(doctor::Args),
    /// Check every operation between two processes, byte by byte, and print the speed.
    ///
    /// The demo runs for some seconds. The processes use the first device: the loopback interface,
    /// unless ROXE_NETDEV selects another.
    Demo(demo::Args),
    /// List devices and their addresses.
    Devices(devices::Args),
    /// List settings with their values and origins.
    Config(config::Args),
    /// List the rules of run --check with their sources.
    Rules(rules::Args),
    /// List the counters of devices.
    Counters,
    /// Show queue pairs of running programs.
    Top(top::Args),
    /// List devices and live objects as rdma of iproute2 does.
    ///
    /// Accepts the arguments of that command (man rdma): link, dev, resource, statistic, system,
    /// monitor, with -j, -p and -d. Programs under roxe run find it as rdma.
    #[command(override_usage = "roxe rdma [ARGS]...")]
    Rdma(rdma::Args),
    /// Print or serve the counters of running programs for Prometheus.
    Metrics(metrics::Args),
    /// Print the RoCEv2 packets of a capture (pcap, pcapng).
    Dump(dump::Args),
    /// Report the rules that the cards of a capture break.
    ///
    /// Judges connections of any two cards by their packets: sequence, lengths, answers,
    /// retransmissions, congestion notifications, the connection manager (roxe help
    /// judge-captures).
    Judge(judge::Args),
    /// Run packet scripts against a card.
    Drill(drill::DrillArgs),
    /// Run the conformance catalogue against a card, and report by clause.
    Conform(drill::ConformArgs),
    /// Serve this host's card to conform, drill, fuzz and check-peer on another host.
    ///
    /// Uses this host's libibverbs with any card; under roxe run that is roxe. Prints where it
    /// listens and the token that a controller must present (roxe help agent).
    Peer(peer::Args),
    /// Check that this host's card and another card interoperate.
    ///
    /// Checks every service, operation, size and path MTU in both directions, byte by byte. roxe
    /// peer must run on the other host. The card of this host is that of its libibverbs; under roxe
    /// run it is roxe.
    CheckPeer(check_peer::Args),
    /// Find where a card differs from roxe's transport.
    ///
    /// A seed generates cases. Each difference is shortened and written as a script for roxe drill.
    Fuzz(fuzz::Args),
    /// Send the requests of a capture to another card.
    ///
    /// Queue pairs and memory like those of the capture are created there; their numbers, keys and
    /// addresses replace the recorded ones.
    Replay(replay::Args),
    /// Print the help of a command, or a page of the manual.
    Help(help::Args),
    /// Write man pages and completions to a folder.
    #[command(hide = true)]
    GenerateDocs(help::GenerateArgs),
    /// One run of a sweep.
    #[command(hide = true)]
    SweepTrial(sweep::InnerArgs),
    /// Process 1 of a lab.
    #[command(hide = true)]
    LabSwitch(lab::InnerArgs),
    /// A host of a lab.
    #[command(hide = true)]
    LabHost(lab::InnerArgs),
    /// The second process of demo.
    #[command(hide = true)]
    DemoServer,
    /// The process that prints the counters of killed processes for run --stats.
    #[command(hide = true)]
    TellStats(stats::Args),
    /// The process that reports programs that load another libibverbs.
    #[command(hide = true)]
    TellBypass(bypass::Args),
    /// The child process in which run tries to enter a view.
    #[command(hide = true)]
    ProbeView,
}

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    if rdma::is_called(words.next().as_ref()) {
        return finish("rdma", rdma::main(&words.collect::<Vec<_>>()));
    }
    let command = help::complete(Cli::command());
    let cli = Cli::from_arg_matches(&command.clone().get_matches()).unwrap_or_else(|error| error.exit());
    match cli.command {
        Command::Run(args) if args.asks_for_fault_rules() => finish("run", run::print_fault_rules()),
        Command::Run(args) => {
            let error = run::run(&args);
            eprintln!("roxe run: {error}");
            ExitCode::from(error.exit_code())
        }
        Command::Demo(args) => finish("demo", demo::run(&args)),
        Command::Env(args) => finish("env", env::run(&args)),
        Command::Faults(args) => finish("faults", faults::run(&args)),
        Command::Sweep(args) => finish_with("sweep", sweep::run(&args)),
        Command::SweepTrial(args) => finish_with("sweep", sweep::inner(&args)),
        Command::Lab(args) => finish_with("lab", lab::run(&args)),
        Command::LabSwitch(args) => finish_with("lab", lab::switch(&args)),
        Command::LabHost(args) => finish_with("lab-host", lab::host(&args)),
        Command::InstallLib(args) => finish("install-lib", install_lib::run(&args)),
        Command::Doctor(args) => finish("doctor", doctor::run(&args)),
        Command::Devices(args) => finish("devices", devices::run(&args)),
        Command::Config(args) => finish("config", config::run(&args)),
        Command::Rules(args) => finish("rules", rules::run(&args)),
        Command::Help(args) => finish("help", help::run(&args, command)),
        Command::GenerateDocs(args) => finish("generate-docs", help::generate(&args, &command)),
        Command::Counters => finish("counters", devices::counters()),
        Command::Top(args) => finish("top", top::run(&args)),
        Command::Rdma(args) => finish("rdma", rdma::run(&args)),
        Command::Metrics(args) => finish("metrics", metrics::run(&args)),
        Command::Dump(args) => finish("dump", dump::run(&args)),
        Command::Judge(args) => finish_with("judge", judge::run(&args)),
        Command::Drill(args) => finish("drill", drill::drill(&args)),
        Command::Conform(args) => finish("conform", drill::conform(&args)),
        Command::Replay(args) => finish("replay", replay::run(&args)),
        Command::Fuzz(args) => finish("fuzz", fuzz::run(&args)),
        Command::Peer(args) => finish("peer", peer::run(&args)),
        Command::CheckPeer(args) => finish("check-peer", check_peer::run(&args)),
        Command::TellStats(args) => finish("tell-stats", stats::print_at_end(&args)),
        Command::TellBypass(args) => finish("tell-bypass", bypass::report(&args)),
        Command::ProbeView => finish("probe-view", view::probe()),
        Command::DemoServer => finish("demo (server)", demo::serve()),
    }
}

/// Returns the exit status of a subcommand that chooses it.
fn finish_with(name: &str, result: Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| finish(name, Err(error)))
}

/// Returns the exit status of a subcommand: 0, or 1 after it has printed the error.
fn finish(name: &str, result: Result) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    // The reader of the output may close it, as `head` does.
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    eprintln!("roxe {name}: {error}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        help::complete(Cli::command()).debug_assert();
    }

    #[test]
    fn arguments_after_the_program_belong_to_it() {
        let cli = Cli::try_parse_from(["roxe", "run", "--netdev", "eth0", "prog", "--netdev", "x", "-h"]).unwrap();
        let Command::Run(args) = cli.command else { panic!("not run") };
        assert_eq!(args.command, ["prog", "--netdev", "x", "-h"]);
        assert!(Cli::try_parse_from(["roxe", "run", "--", "prog", "--version"]).is_ok());
        assert!(Cli::try_parse_from(["roxe", "run"]).is_err());
    }

    #[test]
    fn unknown_option_is_refused() {
        let error = Cli::try_parse_from(["roxe", "run", "--netdv", "lo", "--", "ls"]).unwrap_err().to_string();
        assert!(error.contains("unexpected argument '--netdv'") && error.contains("'--netdev'"), "{error}");
        let cli = Cli::try_parse_from(["roxe", "run", "--", "--odd-name", "-x"]).unwrap();
        let Command::Run(args) = cli.command else { panic!("not run") };
        assert_eq!(args.command, ["--odd-name", "-x"]);
    }

    #[test]
    fn help_is_printed_for_help_and_h() {
        for words in [&["roxe", "--help"][..], &["roxe", "-h"], &["roxe", "run", "--help"]] {
            let error = help::complete(Cli::command()).try_get_matches_from(words).unwrap_err();
            assert_eq!(error.kind(), clap::error::ErrorKind::DisplayHelp);
        }
        assert!(Cli::try_parse_from(["roxe", "help", "run"]).is_ok());
    }
}
