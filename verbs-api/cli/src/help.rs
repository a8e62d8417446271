//! The text around the command line: the groups of `roxe --help`, examples, man pages,
//! completions, and the manual that `roxe help TOPIC` prints.
//!
//! clap knows the options; [`COMMANDS`] has everything else that help shows. The manual is the
//! folder `docs` of the project. `manual` in this crate is a link to that folder, because a
//! published crate contains only files of its own folder.

use crate::output::Result;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use roxe_check::Rule;
use roxe_provider::config::KNOBS;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _, stdout};
use std::path::PathBuf;

/// Arguments of `roxe help`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A command, a page of the manual, or `topics` for the list of pages.
    topic: Option<String>,
}

/// Arguments of `roxe generate-docs`.
#[derive(Debug, clap::Args)]
pub(crate) struct GenerateArgs {
    /// Folder to write to; created if missing.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// The help of a command beyond its options.
struct About {
    name: &'static str,
    /// Command lines and, in the imperative, their effects.
    examples: &'static [(&'static str, &'static str)],
    /// The exit statuses in sentences.
    status: &'static str,
    /// Environment variables that the command itself reads.
    variables: &'static [&'static str],
}

const DEFAULT_STATUS: &str = "0 on success, 1 after an error, 2 for invalid arguments.";
const NETDEV: &[&str] = &["ROXE_NETDEV"];
const TOKEN: &[&str] = &["ROXE_PEER_TOKEN"];

/// Commands in the groups and the order of `roxe --help`.
const COMMANDS: &[(&str, &[About])] = &[
    (
        "Run programs",
        &[
            About {
                name: "run",
                examples: &[
                    ("roxe run -- ibv_devinfo", "run a program on the device of the loopback interface"),
                    ("roxe run --netdev eth0 -- ib_write_bw -d roxe0 192.0.2.1", "run a client on the device of eth0"),
                    ("roxe run --explain --check -- ./program", "explain failed requests and report misuse"),
                    (
                        "roxe run --faults 'seed=1; drop 3%' --capture run-%p.pcapng -- rping -c -a 127.0.0.1",
                        "drop 3% of the packets and capture the traffic",
                    ),
                ],
                status: "The program's exit status; 127 if the program does not exist, 126 if it cannot be started, 125 if \
                         roxe cannot be set up for it, 66 if the program exited with 0 but --check reported an error, \
                         2 for invalid arguments.",
                variables: &["ROXE_LIB", "ROXE_VIEW"],
            },
            About {
                name: "env",
                examples: &[
                    ("eval \"$(roxe env)\"; ibv_devinfo", "set the environment of the current shell"),
                    ("roxe env --format github >> \"$GITHUB_ENV\"", "set it for later steps of a GitHub Actions job"),
                    ("roxe env --check --format cmake > roxe.cmake", "write it for ctest, with the checker on"),
                ],
                status: DEFAULT_STATUS,
                variables: &["ROXE_LIB"],
            },
            About {
                name: "install-lib",
                examples: &[
                    ("roxe install-lib /usr/local/lib/roxe", "copy the libraries into an image"),
                    ("LD_LIBRARY_PATH=/usr/local/lib/roxe ibv_devices", "use them without `roxe run`"),
                ],
                status: DEFAULT_STATUS,
                variables: &["ROXE_LIB"],
            },
            About {
                name: "lab",
                examples: &[
                    ("roxe lab --hosts 4 -- sh -c 'hostname; ibv_devices'", "run a command on four hosts"),
                    (
                        "roxe lab --link '20us loss 0.1%' -- ./test.sh",
                        "run a script on two hosts with slow, lossy links",
                    ),
                    ("roxe lab lab.toml", "run a scenario file"),
                    ("roxe lab --cut 2", "cut the link of host 2 of the running lab"),
                    ("roxe lab --shell 2", "open a shell on host 2"),
                ],
                status: "0 if the commands of all hosts exited with 0, otherwise the exit status of the first that failed \
                         (128 plus the signal number if a signal ended it); 124 if a scenario timed out; 2 for \
                         invalid arguments.",
                variables: &[],
            },
            About {
                name: "sweep",
                examples: &[
                    (
                        "roxe sweep -- ./program",
                        "run the program once for each call, completion, event and packet that can fail",
                    ),
                    (
                        "roxe sweep --verbs --for 10m --report sweep.xml -- ./pair.sh",
                        "fail calls only, for at most 10 minutes, and write a JUnit report",
                    ),
                    (
                        "roxe sweep --fault 'fail create_cq nth=3' -- ./program",
                        "run once with this fault and judge the result",
                    ),
                ],
                status: "0 if every finding is in the baseline, 1 for a new finding or if the program fails without a \
                         fault, 2 for invalid arguments.",
                variables: &[],
            },
            About {
                name: "faults",
                examples: &[
                    ("roxe faults 4711", "print the fault rules of process 4711 and their counts"),
                    ("roxe faults 4711 'drop 100%'", "drop all its packets until `roxe faults 4711 none`"),
                ],
                status: DEFAULT_STATUS,
                variables: &[],
            },
            About {
                name: "demo",
                examples: &[
                    ("roxe demo", "check every operation between two processes"),
                    ("roxe demo send", "run only the checks whose names contain a word"),
                ],
                status: DEFAULT_STATUS,
                variables: NETDEV,
            },
        ],
    ),
    (
        "Inspect this host",
        &[
            About {
                name: "doctor",
                examples: &[("roxe doctor", "check this host"), ("roxe doctor --json", "print JSON")],
                status: "0 if programs can use roxe, 1 if a check prints MISSING, 2 for invalid arguments.",
                variables: NETDEV,
            },
            About {
                name: "devices",
                examples: &[
                    ("roxe devices", "list the device of the loopback interface"),
                    ("roxe devices --netdev eth0,eth1", "list the devices of two interfaces"),
                ],
                status: DEFAULT_STATUS,
                variables: NETDEV,
            },
            About {
                name: "config",
                examples: &[
                    ("roxe config", "list all settings and their values"),
                    ("ROXE_LINK=udp roxe config", "check that a value is valid"),
                ],
                status: "0 if all settings are valid, 1 if an invalid one would stop programs from starting, 2 for \
                         invalid arguments.",
                variables: &[],
            },
            About {
                name: "rules",
                examples: &[("roxe rules", "list the rules of the checker"), ("roxe rules --json", "print JSON")],
                status: DEFAULT_STATUS,
                variables: &[],
            },
            About {
                name: "counters",
                examples: &[
                    ("roxe counters", "list all counters"),
                    ("roxe counters | grep NAK", "find a counter by its meaning"),
                ],
                status: DEFAULT_STATUS,
                variables: &[],
            },
        ],
    ),
    (
        "Watch running programs",
        &[
            About {
                name: "top",
                examples: &[
                    ("roxe top", "refresh a table of all programs every second"),
                    ("roxe top --once 4711", "print process 4711 once"),
                ],
                status: DEFAULT_STATUS,
                variables: &[],
            },
            About {
                name: "rdma",
                examples: &[
                    ("roxe rdma link", "list the links of roxe's devices"),
                    ("roxe run -- rdma -j res show qp", "print the queue pairs of running programs as JSON"),
                ],
                status: DEFAULT_STATUS,
                variables: NETDEV,
            },
            About {
                name: "metrics",
                examples: &[
                    ("roxe metrics --output roxe.prom", "write a file for the textfile collector of node_exporter"),
                    ("roxe metrics --listen 127.0.0.1:9417", "serve /metrics until stopped"),
                ],
                status: DEFAULT_STATUS,
                variables: &[],
            },
        ],
    ),
    (
        "Read captures",
        &[
            About {
                name: "dump",
                examples: &[
                    ("roxe dump run.pcapng", "print one line per packet"),
                    ("roxe dump --odd --qp 0x11 run.pcapng", "print only the unusual packets of one queue pair"),
                    ("roxe dump --html ladder.html run.pcapng", "draw a ladder diagram"),
                ],
                status: "0 on success, 1 after an error or, with --check, at the first damaged packet, 2 for invalid \
                         arguments.",
                variables: &["NO_COLOR"],
            },
            About {
                name: "judge",
                examples: &[
                    ("roxe judge run.pcapng", "print the rules that each card broke"),
                    ("roxe judge --complete --advice run.pcapng", "assume a complete capture, and print advice too"),
                    ("roxe judge --rules", "list the rules"),
                ],
                status: "0 if no card is at fault, 1 if a card is, 2 if a file cannot be judged or for invalid arguments.",
                variables: &[],
            },
            About {
                name: "replay",
                examples: &[
                    ("roxe replay run.pcapng virtual", "send the captured requests to roxe's transport"),
                    ("roxe replay --script run.drill run.pcapng virtual", "write the requests to a script"),
                ],
                status: DEFAULT_STATUS,
                variables: TOKEN,
            },
        ],
    ),
    (
        "Judge a card",
        &[
            About {
                name: "conform",
                examples: &[
                    ("roxe conform virtual atomic", "run the cases about atomics against roxe's transport"),
                    ("roxe conform peer://192.0.2.7 --html page.html", "run all cases against a card with an agent"),
                    ("roxe conform peer://192.0.2.7 --compare old.json", "fail only if a case got worse"),
                ],
                status: "0 if every case ran and none failed or was inconclusive, otherwise 1. With --compare: 1 if a case got worse, the \
                         connection to the agent was lost or an error occurred, otherwise 0. 2 for invalid \
                         arguments.",
                variables: TOKEN,
            },
            About {
                name: "drill",
                examples: &[
                    ("roxe drill virtual my.drill", "run a script against roxe's transport"),
                    ("roxe drill peer://192.0.2.7 my.drill", "run it against a card with an agent"),
                ],
                status: "0 if every case ran and none failed or was inconclusive, otherwise 1; 2 for invalid \
                         arguments.",
                variables: TOKEN,
            },
            About {
                name: "fuzz",
                examples: &[
                    ("roxe fuzz self --seconds 10", "compare roxe over UDP with its transport"),
                    ("roxe fuzz peer://192.0.2.7 --findings found", "write a script for each difference"),
                ],
                status: "0 if the two cards behave alike, 1 if they differ or after an error, 2 for invalid arguments.",
                variables: TOKEN,
            },
            About {
                name: "check-peer",
                examples: &[
                    ("roxe run -- roxe check-peer 192.0.2.7", "check roxe against the card of another host"),
                    ("roxe check-peer 192.0.2.7 RC SEND ipv4", "check this host's card: RC SENDs over IPv4 only"),
                ],
                status: "0 if all checks passed, otherwise 1; 2 for invalid arguments.",
                variables: TOKEN,
            },
            About {
                name: "peer",
                examples: &[
                    ("roxe peer --listen 192.0.2.7:14791", "run the agent for this host's card"),
                    ("roxe run -- roxe peer", "run the agent for roxe's card on the loopback interface"),
                ],
                status: DEFAULT_STATUS,
                variables: TOKEN,
            },
        ],
    ),
];

fn commands() -> impl Iterator<Item = &'static About> {
    COMMANDS.iter().flat_map(|(_, abouts)| *abouts)
}

/// Declares the pages of the manual: topic and file.
macro_rules! pages {
    ($($folder:literal: $($topic:literal)+;)+) => {
        &[$($((
            $topic,
            concat!($folder, $topic, ".md"),
            include_str!(concat!("../manual/", $folder, $topic, ".md")),
        )),+),+]
    };
}

/// Pages of the manual that `roxe help` prints: topic, path, text.
const PAGES: &[(&str, &str, &str)] = pages! {
    "": "introduction";
    "tutorials/": "first-program" "ci" "first-mistakes" "survive" "judge-a-card";
    "how-to/": "install" "build-systems" "without-roxe-run" "containers" "several-hosts" "two-hosts" "kernel-rxe"
        "programs" "explain" "error-paths" "captures" "judge-captures" "trace" "watch";
    "reference/": "environment" "fault-rules" "checker" "explanations" "completions" "scripts" "agent" "profiles"
        "conformance-report"
        "connections" "rust" "features" "debian";
    "explanation/": "packets" "security" "weakest" "performance" "limits" "decisions";
};

/// Returns the command line with groups and examples.
pub(crate) fn complete(mut command: Command) -> Command {
    let mut text = "{about}\n\n{usage-heading} {usage}\n".to_owned();
    for (group, abouts) in COMMANDS {
        _ = write!(text, "\n{group}:\n");
        for About { name, examples, status, .. } in *abouts {
            let summary = command.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string);
            _ = writeln!(text, "  {name:<12} {}", summary.unwrap_or_default());
            let width = examples.iter().map(|(line, _)| line.len()).filter(|len| *len < 60).max().unwrap_or(0);
            let mut after = "Examples:\n".to_owned();
            for (line, effect) in *examples {
                _ = writeln!(after, "  {line:<width$}  # {effect}");
            }
            _ = write!(after, "\nExit status: {status}");
            command = command.mut_subcommand(name, |sub| sub.after_help(after));
        }
    }
    text += "\n  help         Print the help of a command, or a page of the manual (help topics lists them)\n";
    text += "\nOptions:\n{options}{after-help}";
    command.help_template(text)
}

/// Prints the help of a command of the completed command line, or a page of the manual.
pub(crate) fn run(args: &Args, mut command: Command) -> Result {
    let Some(topic) = args.topic.as_deref() else { return Ok(command.print_help()?) };
    if topic == "topics" {
        let mut out = stdout().lock();
        for (topic, path, text) in PAGES {
            let title = text.lines().next().unwrap_or_default().trim_start_matches("# ");
            let kind = path.split_once('/').map_or("", |(kind, _)| kind);
            writeln!(out, "{topic:<17} {kind:<12} {title}")?;
        }
        return Ok(());
    }
    if let Some((_, _, text)) = PAGES.iter().find(|(name, ..)| *name == topic) {
        let shown = text.lines().filter(|line| !line.starts_with("<!--"));
        return Ok(shown.map(|line| format!("{line}\n")).try_for_each(|line| stdout().write_all(line.as_bytes()))?);
    }
    command.build();
    match command.find_subcommand_mut(topic).filter(|sub| !sub.is_hide_set()) {
        Some(sub) => Ok(sub.print_long_help()?),
        None => Err(format!("there is no command or page {topic:?}; `roxe help topics` lists the pages").into()),
    }
}

/// Function of bash that completes the program after `roxe run --`, its arguments if the package
/// bash-completion is loaded, and the rules after `--check=`.
const BASH_COMPLETION: &str = "
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
    if [[ ${COMP_WORDS[COMP_CWORD - 2]} == --check && ${COMP_WORDS[COMP_CWORD - 1]} == = ]]; then
        COMPREPLY=($(compgen -W 'RULES' -- \"${COMP_WORDS[COMP_CWORD]}\"))
        return
    fi
    _roxe \"$@\"
}
complete -F _roxe_or_program -o bashdefault -o default roxe
";

/// Writes the man pages of the completed command line, and its completions under the names that
/// shells look for.
pub(crate) fn generate(args: &GenerateArgs, command: &Command) -> Result {
    fs::create_dir_all(&args.folder)?;
    let rules = ["all", "warn", "stop", "wait", "suggest"].into_iter().chain(Rule::ALL.iter().map(|rule| rule.name()));
    let rules = rules.collect::<Vec<_>>().join(" ");
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let path = clap_complete::generate_to(shell, &mut visible(command), "roxe", &args.folder)?;
        let own = match shell {
            Shell::Bash => BASH_COMPLETION.replace("RULES", &rules),
            Shell::Fish => {
                format!("complete -c roxe -n '__fish_seen_subcommand_from run env' -l check -xa '{rules}'\n")
            }
            _ => {
                let text = fs::read_to_string(&path)?;
                fs::write(&path, text.replace(":RULES:_default", &format!(":RULES:({rules})")))?;
                continue;
            }
        };
        OpenOptions::new().append(true).open(path)?.write_all(own.as_bytes())?;
    }
    let mut shown = visible(command);
    shown.build();
    let settings: Vec<(&str, &str)> = KNOBS.iter().map(|knob| (knob.name, knob.help)).collect();
    fs::write(args.folder.join("roxe.1"), man_page(&shown, "roxe", &FIRST_STEPS, DEFAULT_STATUS, &settings)?)?;
    for About { name, examples, status, variables } in commands() {
        let Some(sub) = shown.find_subcommand(name) else { continue };
        let variables: Vec<(&str, &str)> = variables.iter().map(|name| (*name, meaning(name))).collect();
        let title = format!("roxe-{name}");
        fs::write(args.folder.join(format!("{title}.1")), man_page(sub, &title, examples, status, &variables)?)?;
    }
    Ok(())
}

const FIRST_STEPS: [(&str, &str); 3] = [
    ("roxe demo", "check that roxe works on this host"),
    ("roxe run -- ibv_rc_pingpong -g 0", "start a server"),
    ("roxe run -- ibv_rc_pingpong -g 0 127.0.0.1", "start its client in another terminal"),
];

fn meaning(variable: &str) -> &'static str {
    match variable {
        "ROXE_LIB" => "Folder with libroxe.so, instead of the default folders.",
        "ROXE_VIEW" => "off: do not show the program roxe's devices in /sys/class/infiniband.",
        "ROXE_PEER_TOKEN" => "Token of the agent.",
        "NO_COLOR" => "If set, print without colours.",
        _ => KNOBS.iter().find(|knob| knob.name == variable).map_or("", |knob| knob.help),
    }
}

/// Returns the command line without internal commands.
fn visible(command: &Command) -> Command {
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned().collect::<Vec<_>>();
    let about = command.get_about().cloned().unwrap_or_default();
    Command::new("roxe")
        .version(env!("CARGO_PKG_VERSION"))
        .about(about)
        .disable_help_subcommand(true)
        .subcommands(shown)
}

fn man_page(
    command: &Command,
    title: &str,
    examples: &[(&str, &str)],
    status: &str,
    variables: &[(&str, &str)],
) -> io::Result<Vec<u8>> {
    // The sections below replace the text at the end of `--help`.
    let man = Man::new(command.clone().after_help("").display_name(title)).title(title.to_uppercase());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_opts().next().is_some() || command.get_positionals().next().is_some() {
        man.render_options_section(&mut page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    writeln!(page, ".SH EXIT STATUS\n{}", roff(status))?;
    if !variables.is_empty() {
        writeln!(page, ".SH ENVIRONMENT")?;
        variables.iter().try_for_each(|(name, help)| writeln!(page, ".TP\n\\fB{}\\fR\n{}", roff(name), roff(help)))?;
    }
    writeln!(page, ".SH EXAMPLES")?;
    examples.iter().try_for_each(|(line, effect)| writeln!(page, ".TP\n\\fB{}\\fR\n{}", roff(line), roff(effect)))?;
    writeln!(page, ".SH SEE ALSO\nroxe(1); the manual in /usr/share/doc/roxe, or roxe help topics")?;
    Ok(page)
}

/// Escapes text for roff.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::Scratch;
    use clap::CommandFactory as _;

    fn command() -> Command {
        complete(crate::Cli::command())
    }

    /// Returns the page `reference/command-line.md` of the manual.
    fn reference(command: &Command) -> String {
        let mut page =
            "# Command line\n\n`roxe help COMMAND` prints these texts. A test generates this page.\n\n".to_owned();
        let mut command = command.clone();
        command.build();
        _ = write!(page, "```text\n{}\n```\n", command.render_help().to_string().trim_end());
        for About { name, .. } in commands() {
            let Some(sub) = command.find_subcommand_mut(name) else { continue };
            let help = sub.render_long_help().to_string();
            let lines = help.lines().map(|line| format!("{}\n", line.trim_end()));
            _ = write!(page, "\n## roxe {name}\n\n```text\n{}```\n", lines.collect::<String>());
        }
        page
    }

    /// Returns a folder with the generated files.
    fn generated(name: &str) -> Scratch {
        let scratch = Scratch::new(name);
        generate(&GenerateArgs { folder: scratch.to_path_buf() }, &command()).unwrap();
        scratch
    }

    #[test]
    fn help_fits_a_screen_and_lists_every_command() {
        let help = command().render_help().to_string();
        assert!(help.lines().count() <= 48 && help.lines().all(|line| line.chars().count() <= 100), "{help}");
        for sub in crate::Cli::command().get_subcommands() {
            assert_eq!(help.contains(&format!("  {} ", sub.get_name())), !sub.is_hide_set(), "{}", sub.get_name());
        }
    }

    #[test]
    fn commands_have_examples_and_an_exit_status() {
        for About { name, examples, status, .. } in commands() {
            assert!(examples.len() >= 2 && !status.is_empty(), "{name}");
        }
    }

    #[test]
    fn generated_files_show_no_internal_command() {
        let scratch = generated("pages");
        for file in fs::read_dir(&*scratch).unwrap() {
            let path = file.unwrap().path();
            let text = fs::read_to_string(&path).unwrap().replace("\\-", "-");
            for internal in crate::Cli::command().get_subcommands().filter(|sub| sub.is_hide_set()) {
                assert!(!text.contains(internal.get_name()), "{path:?} {}", internal.get_name());
            }
        }
        let page = fs::read_to_string(scratch.join("roxe-run.1")).unwrap();
        for section in ["NAME", "SYNOPSIS", "OPTIONS", "EXIT STATUS", "ENVIRONMENT", "EXAMPLES", "SEE ALSO"] {
            assert!(page.contains(&format!(".SH {section}")) || page.contains(&format!(".SH \"{section}\"")), "{page}");
        }
    }

    #[test]
    fn bash_completes_commands_programs_and_rules() {
        let scratch = generated("completion");
        let complete = |words: &str, at: usize| {
            let script = format!(
                "source {}; COMP_WORDS=({words}); COMP_CWORD={at}; _roxe_or_program roxe \"${{COMP_WORDS[{at}]}}\" \
                 \"${{COMP_WORDS[{at} - 1]}}\"; echo \"${{COMPREPLY[*]}}\"",
                scratch.join("roxe.bash").display()
            );
            let output = std::process::Command::new("bash").args(["--norc", "-c", &script]).output().unwrap();
            String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(complete("roxe run -- mkdi", 3).contains(&"mkdir".to_owned()));
        assert!(complete("roxe run --net", 2).contains(&"--netdev".to_owned()));
        assert!(complete("roxe dev", 1).contains(&"devices".to_owned()));
        assert!(complete("roxe run --check = key-st", 4).contains(&"key-stale".to_owned()));
        assert!(complete("roxe run --profile cx", 3).contains(&"cx5".to_owned()));
    }

    #[test]
    fn command_line_page_of_the_manual_is_generated() {
        let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("manual/reference/command-line.md");
        if std::env::var_os("ROXE_WRITE_DOCS").is_some() {
            fs::write(&page, reference(&command())).unwrap();
        }
        let text = fs::read_to_string(page).unwrap_or_default();
        assert_eq!(text, reference(&command()), "run this test with ROXE_WRITE_DOCS=1");
    }

    #[test]
    fn help_names_existing_topics() {
        let mut command = command();
        command.build();
        let texts = command.get_subcommands_mut().map(|sub| sub.render_long_help().to_string());
        let texts = texts.collect::<String>();
        let named: Vec<&str> = texts.split("(roxe help ").skip(1).filter_map(|rest| rest.split(')').next()).collect();
        let is_known = |topic: &&str| PAGES.iter().any(|(name, ..)| name == topic);
        assert!(named.len() > 3 && named.iter().all(is_known), "{named:?}");
    }

    #[test]
    fn topics_are_unique_and_differ_from_commands() {
        let mut topics: Vec<&str> = PAGES.iter().map(|(topic, ..)| *topic).collect();
        topics.extend(commands().map(|about| about.name));
        let count = topics.len();
        topics.sort_unstable();
        topics.dedup();
        assert_eq!(topics.len(), count, "{topics:?}");
    }
}
