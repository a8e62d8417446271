//! `roxe peer` and its controllers: the token, and limits on connections.

use crate::common::stderr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

const CHECK: [&str; 1] = ["RC SEND size=1 mtu=256 ipv4"];

/// An agent for roxe's card, with a folder for its files.
struct Agent {
    child: Child,
    out: BufReader<ChildStdout>,
    folder: PathBuf,
}

impl Agent {
    fn start(name: &str, options: &[&str], token: Option<&str>) -> Self {
        let folder = std::env::temp_dir().join(format!("roxe-cli-peer-{}-{name}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let roxe = env!("CARGO_BIN_EXE_roxe");
        let mut command = Command::new(roxe);
        command.args(["run", "--", roxe, "peer", "--listen", "127.0.0.1:0"]).args(options).current_dir(&folder);
        command.envs(token.map(|token| ("ROXE_PEER_TOKEN", token))).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out, folder }
    }

    fn words(&mut self) -> Vec<String> {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn check(&self, arguments: &[&str], token: Option<&str>) -> Output {
        let roxe = env!("CARGO_BIN_EXE_roxe");
        let mut command = Command::new(roxe);
        command.args(["run", "--", roxe, "check-peer"]).args(arguments).args(CHECK).current_dir(&self.folder);
        command.envs(token.map(|token| ("ROXE_PEER_TOKEN", token))).output().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn token_file_replaces_token_in_arguments() {
    let mut agent = Agent::start("file", &["--token-file", "token"], None);
    let words = agent.words();
    let [_, address, how, file] = &words[..] else { panic!("{words:?}") };
    assert_eq!((how.as_str(), file.as_str()), ("token-file", "token"));
    let path = agent.folder.join("token");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let output = agent.check(&[address, "--token-file", "token"], None);
    assert!(output.status.success() && !stderr(&output).contains("warning"), "{}", stderr(&output));
    let output = agent.check(&[address], None);
    assert!(!output.status.success() && stderr(&output).contains("ROXE_PEER_TOKEN"), "{}", stderr(&output));
    let token = std::fs::read_to_string(&path).unwrap();
    let output = agent.check(&[&format!("{}@{address}", token.trim())], None);
    assert!(output.status.success() && stderr(&output).contains("roxe: warning: "), "{}", stderr(&output));
    assert!(!stderr(&output).contains(token.trim()), "{}", stderr(&output));
}

#[test]
fn token_from_environment_is_used_and_not_printed() {
    let token = "a secret of this test".replace(' ', "-");
    let mut agent = Agent::start("variable", &[], Some(&token));
    let words = agent.words();
    let [_, address, how, variable] = &words[..] else { panic!("{words:?}") };
    assert_eq!((how.as_str(), variable.as_str()), ("token-variable", "ROXE_PEER_TOKEN"));
    assert!(agent.check(&[address], Some(&token)).status.success());
    let output = agent.check(&[address], Some("another secret of it"));
    assert!(!output.status.success(), "{}", stderr(&output));
    let mut weak = Agent::start("weak", &[], Some("short"));
    assert!(weak.words().is_empty() && !weak.child.wait().unwrap().success());
}

#[test]
fn silent_connections_do_not_block_controllers() {
    let mut agent = Agent::start("silent", &["--once", "--token-file", "token"], None);
    let address = agent.words().swap_remove(1);
    let mut silent: Vec<_> = (0..20).map(|_| TcpStream::connect(&address).unwrap()).collect();
    silent.iter_mut().for_each(|stream| stream.write_all(b"{\"id\":1").unwrap_or_default());
    let output = agent.check(&[&address, "--token-file", "token"], None);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(agent.child.wait().unwrap().success(), "it ends with the first controller");
}
