//! Output and exit status of the program.

use crate::common::{Scratch, stderr, stdout};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn roxe(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roxe"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ROXE_")) {
        command.env_remove(name);
    }
    command.args(args);
    command
}

fn output(args: &[&str]) -> Output {
    roxe(args).output().unwrap()
}

fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "pcap")).collect()
}

#[test]
fn devices_are_listed_with_their_addresses() {
    let output = output(&["devices"]);
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(text.starts_with("DEVICE  NETDEV  STATE   MTU   GID  ADDRESS\n"), "{text}");
    let first: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(first, ["roxe0", "lo", "active", "4096", "0", "127.0.0.1"]);
}

#[test]
fn unknown_interface_is_an_error_that_lists_existing_ones() {
    let output = roxe(&["devices"]).env("ROXE_NETDEV", "nonexistent0").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("nonexistent0") && text.contains("lo"), "{text}");
}

#[test]
fn config_shows_settings_with_their_origin() {
    let output = roxe(&["config"]).env("ROXE_SPIN_US", "7").output().unwrap();
    let text = stdout(&output);
    assert!(output.status.success());
    for knob in roxe_provider::config::KNOBS {
        let mut lines = text.lines().skip_while(|line| !line.starts_with(knob.name));
        let (line, help) = (lines.next().unwrap(), lines.next().unwrap());
        assert_eq!(help.trim(), knob.help);
        assert_eq!(line.contains("environment"), knob.name == "ROXE_SPIN_US", "{line}");
    }
}

#[test]
fn invalid_setting_is_refused() {
    let output = roxe(&["config"]).env("ROXE_SPIN_US", "soon").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("ROXE_SPIN_US"));
}

#[test]
fn captures_of_a_kernel_peer_pass_the_check() {
    let files = captures();
    assert!(!files.is_empty());
    for file in files {
        let output = output(&["dump", "--check", file.to_str().unwrap()]);
        assert!(output.status.success(), "{}: {}", file.display(), stderr(&output));
        let text = stdout(&output);
        let (last, lines) = text.lines().rev().collect::<Vec<_>>().split_first().map(|(l, r)| (*l, r.len())).unwrap();
        assert!(lines > 0, "{}", file.display());
        assert!(last.starts_with(&format!("{lines} RoCEv2 packets, 0 of them bad; ")), "{last}");
        assert!(text.lines().rev().skip(1).all(|line| line.ends_with("icrc ok")));
    }
}

#[test]
fn connection_messages_are_printed_by_name() {
    let told = |name: &str| {
        let file = captures().into_iter().find(|path| path.ends_with(name)).unwrap();
        let text = stdout(&output(&["dump", file.to_str().unwrap()]));
        let lines = text.lines().filter_map(|line| line.split_once("  CM ")?.1.strip_suffix("  icrc ok"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let [req, rep, rtu, dreq, drep] = told("rping.pcap").try_into().unwrap();
    let expected: [&str; 5] = ["REQ", "REP", "RTU", "DREQ", "DREP"];
    assert_eq!([&req, &rep, &rtu, &dreq, &drep].map(|line| line.split(' ').next().unwrap()), expected);
    assert_eq!(told("udaddy.pcap").len(), 4);
}

#[test]
fn dump_check_stops_at_damaged_packet() {
    let file = captures().into_iter().find(|path| path.ends_with("rc_send_pingpong.pcap")).unwrap();
    let mut bytes = fs::read(file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let scratch = Scratch::new("damaged");
    let damaged = scratch.file("damaged.pcap", &bytes);

    let checked = output(&["dump", "--check", &damaged]);
    assert_eq!(checked.status.code(), Some(1));
    let frames = roxe_wire::capture::frames(&bytes).unwrap().count();
    assert!(stderr(&checked).contains(&format!("frame {frames} is bad: icrc wrong")), "{}", stderr(&checked));
    assert!(stdout(&checked).lines().last().unwrap().contains("icrc wrong"));

    let shown = output(&["dump", &damaged]);
    assert!(shown.status.success());
    assert!(stdout(&shown).lines().last().unwrap().contains(" 1 of them bad; "));
}

#[test]
fn file_without_capture_is_refused_with_advice() {
    let scratch = Scratch::new("text");
    let text = scratch.file("text", b"not a capture at all");
    let output_of_text = output(&["dump", &text]);
    assert_eq!(output_of_text.status.code(), Some(1));
    assert!(stderr(&output_of_text).contains("tcpdump"));
    let missing = output(&["dump", "/nonexistent/file"]);
    assert!(stderr(&missing).contains("cannot read /nonexistent/file"));
}

#[test]
fn demo_prints_cases_and_checks() {
    let output = output(&["demo", "ud"]);
    let text = stdout(&output);
    assert!(output.status.success(), "{text}{}", stderr(&output));
    assert_eq!(text.lines().filter(|line| line.starts_with("UD  send")).count(), 4, "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.contains(" checks passed in ") && !last.starts_with("0 "), "{last}");
}

#[test]
fn demo_refuses_unknown_word() {
    let output = output(&["demo", "teleport"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("roxe demo"));
}

#[test]
fn run_keeps_exit_status_and_puts_library_first() {
    let scratch = Scratch::new("library");
    let library = scratch.file("libroxe.so", b"");
    let home = std::env::temp_dir().join(format!("roxe-test-{}-runtime", std::process::id()));
    fs::create_dir_all(&home).unwrap();
    let script = "readlink ${LD_LIBRARY_PATH%%:*}/libibverbs.so.1 ${LD_LIBRARY_PATH%%:*}/librdmacm.so.1; \
                  echo $LD_LIBRARY_PATH $ROXE_NETDEV $ROXE_STATS $LD_PRELOAD; exit 42";
    let output = roxe(&["run", "--netdev", "eth7", "--stats", "--", "sh", "-c", script])
        .env("ROXE_LIB", &library)
        .env("XDG_RUNTIME_DIR", &home)
        .env("LD_LIBRARY_PATH", "/before")
        .output()
        .unwrap();
    fs::remove_dir_all(&home).unwrap();
    assert_eq!(output.status.code(), Some(42), "{}", stderr(&output));
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(&lines[..2], [&library, &library]);
    assert!(lines[2].ends_with(":/before eth7 words"), "{text}");
}

#[test]
fn option_files_become_absolute_paths() {
    let folder = std::env::temp_dir().join(format!("roxe-test-{}-files", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let folder = folder.canonicalize().unwrap();
    fs::write(folder.join("rules"), "drop 1%").unwrap();
    fs::write(folder.join("known"), "leak main # known").unwrap();
    let options = "--faults @rules --capture c-%p.pcapng --trace t.json --check --report r.xml --suppressions known";
    let words: Vec<&str> = ["env", "--format", "json"].into_iter().chain(options.split(' ')).collect();
    let output = roxe(&words).current_dir(&folder).output().unwrap();
    let text = stdout(&output);
    let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    for (variable, file) in [
        ("ROXE_FAULTS", format!("@{}", at("rules"))),
        ("ROXE_CAPTURE", at("c-%p.pcapng")),
        ("ROXE_TRACE", at("t.json")),
        ("ROXE_CHECK_REPORT", at("r.xml")),
        ("ROXE_CHECK_SUPPRESSIONS", at("known")),
    ] {
        assert!(text.contains(&format!("\"{variable}\": \"{file}\"")), "{variable} {file}\n{text}{}", stderr(&output));
    }
    fs::write(folder.join("unknown"), "leak main").unwrap();
    symlink(folder.join("rules"), folder.join("link")).unwrap();
    for (option, value, why) in [
        ("--report", "no/r.xml", "there is no folder"),
        ("--report", "link", "link"),
        ("--capture", "no/c.pcapng", "there is no folder"),
        ("--trace", "link", "link"),
        ("--suppressions", "missing", "No such file"),
        ("--suppressions", "unknown", "the reason is missing"),
        ("--faults", "@missing", "missing"),
    ] {
        for command in [&["env"][..], &["run", "--", "true"]] {
            let words = [&command[..1], &["--check", option, value], &command[1..]].concat();
            let output = roxe(&words).current_dir(&folder).output().unwrap();
            let text = stderr(&output);
            assert!(!output.status.success() && text.contains(option) && text.contains(why), "{words:?}: {text}");
        }
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn unstartable_program_has_exit_status_of_a_shell() {
    let scratch = Scratch::new("library2");
    let library = scratch.file("libroxe2.so", b"");
    let home = std::env::temp_dir();
    let run = |program: &str| {
        let mut command = roxe(&["run", "--", program]);
        command.env("ROXE_LIB", &library).env("XDG_RUNTIME_DIR", &home).output().unwrap()
    };
    assert_eq!(run("no-such-program-anywhere").status.code(), Some(127));
    assert_eq!(run("/").status.code(), Some(126));
    let output = roxe(&["run", "--", "true"]).env("ROXE_LIB", "/nonexistent/libroxe.so").output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("ROXE_LIB"), "{}", stderr(&output));
}

#[test]
fn closed_output_pipe_is_not_an_error() {
    let file = captures().into_iter().find(|path| path.ends_with("pt_write_bw.pcap")).unwrap();
    let script = format!("'{}' dump '{}' | head -n 1 >/dev/null", env!("CARGO_BIN_EXE_roxe"), file.display());
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(stderr(&output), "");
}
