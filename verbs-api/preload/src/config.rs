//! What the environment and the administrator say.
//!
//! `/etc/rdma/rsocket/preload_config` has lines `program domain type protocol`: a program (the
//! beginning of its name), `INET` `INET6` `IB`, `STREAM` `DGRAM`, `TCP` `UDP`, in any case and with
//! their `AF_` `PF_` `SOCK_` `IPPROTO_`, or `*`. A socket that no line describes stays ordinary.
//! Without the file, or without a line that can be read, all programs and sockets are meant.

use core::ffi::c_int;
use std::sync::OnceLock;

const FILE: &str = "/etc/rdma/rsocket/preload_config";

/// `AF_IB` of Linux.
pub(crate) const AF_IB: c_int = 27;

/// What this process was told, read once.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Of the send queue, the receive queue and inline data: the options 0, 1 and 2 of level
    /// `SOL_RDMA`.
    sizes: [Option<c_int>; 3],
    /// Whether connections begin as TCP, because processes may be forked that go on with them.
    pub(crate) fork_safe: bool,
    rules: Vec<Rule>,
}

/// What a line of the file is for: domain, kind and protocol; `None` stands for `*`.
type Rule = [Option<c_int>; 3];

pub(crate) fn options() -> &'static Options {
    static OPTIONS: OnceLock<Options> = OnceLock::new();
    OPTIONS.get_or_init(|| {
        let file = std::fs::read_to_string(FILE).unwrap_or_default();
        Options::new(|name| std::env::var(name).ok(), &file, &program())
    })
}

/// The program's name without its folder.
fn program() -> String {
    let path = std::env::args_os().next().unwrap_or_default().to_string_lossy().into_owned();
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

impl Options {
    fn new(variable: impl Fn(&str) -> Option<String>, file: &str, program: &str) -> Self {
        let number = |name| variable(name).map(|text| number(&text)).filter(|number| *number != 0);
        let lines: Vec<_> = file.lines().filter_map(parse).collect();
        let rules = match lines.is_empty() {
            true => vec![[None; 3]],
            false => lines.iter().filter(|(start, _)| begins_so(program, start)).map(|(_, rule)| *rule).collect(),
        };
        Self {
            sizes: ["RS_SQ_SIZE", "RS_RQ_SIZE", "RS_INLINE"].map(number),
            fork_safe: number("RDMAV_FORK_SAFE").is_some(),
            rules,
        }
    }

    /// The options of level `SOL_RDMA` to set, with their values.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (c_int, c_int)> {
        (0..).zip(self.sizes).filter_map(|(name, size)| Some((name, size?)))
    }

    /// Whether a socket of this sort should be an rsocket. `kind` has no flags.
    pub(crate) fn want(&self, domain: c_int, kind: c_int, protocol: c_int) -> bool {
        let usual = match kind {
            libc::SOCK_STREAM => libc::IPPROTO_TCP,
            libc::SOCK_DGRAM => libc::IPPROTO_UDP,
            _ => return false,
        };
        let protocol = if protocol == 0 { usual } else { protocol };
        let is = |rule: &Rule| {
            rule.iter().zip([domain, kind, protocol]).all(|(rule, value)| rule.is_none_or(|rule| rule == value))
        };
        protocol == usual && [libc::AF_INET, libc::AF_INET6, AF_IB].contains(&domain) && self.rules.iter().any(is)
    }
}

/// The number that a text begins with, 0 when it begins with none, as C's `atoi` reads it.
fn number(text: &str) -> c_int {
    let text = text.trim_start();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text[..digits].parse().unwrap_or(0)
}

/// The program that a line names, and what it is for; `None` for comments and for what cannot be
/// read.
fn parse(line: &str) -> Option<(&str, Rule)> {
    let mut words = line.split_whitespace();
    let program = words.next().filter(|word| !word.starts_with('#'))?;
    let domain = value(words.next()?, &["AF_", "PF_"], &DOMAINS)?;
    let kind = value(words.next()?, &["SOCK_"], &KINDS)?;
    let protocol = value(words.next()?, &["IPPROTO_"], &PROTOCOLS)?;
    Some((program, [domain, kind, protocol]))
}

fn begins_so(program: &str, start: &str) -> bool {
    start == "*" || program.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start))
}

const DOMAINS: [(&str, c_int); 3] = [("INET", libc::AF_INET), ("INET6", libc::AF_INET6), ("IB", AF_IB)];
const KINDS: [(&str, c_int); 2] = [("STREAM", libc::SOCK_STREAM), ("DGRAM", libc::SOCK_DGRAM)];
const PROTOCOLS: [(&str, c_int); 2] = [("TCP", libc::IPPROTO_TCP), ("UDP", libc::IPPROTO_UDP)];

/// What a word means: `Some(None)` for `*`, `None` when it means nothing.
fn value(word: &str, prefixes: &[&str], names: &[(&str, c_int)]) -> Option<Option<c_int>> {
    if word == "*" {
        return Some(None);
    }
    let word = word.to_ascii_uppercase();
    let bare = prefixes.iter().find_map(|prefix| word.strip_prefix(prefix)).unwrap_or(&word);
    names.iter().find(|(name, _)| *name == bare).map(|(_, value)| Some(*value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{AF_INET, AF_INET6, AF_UNIX, IPPROTO_TCP, IPPROTO_UDP, SOCK_DGRAM, SOCK_RAW, SOCK_STREAM};

    fn with_file(file: &str, program: &str) -> Options {
        Options::new(|_| None, file, program)
    }

    #[test]
    fn without_a_file_all_internet_sockets_are_meant() {
        for file in ["", "# program domain type protocol\n", "incomplete INET\nx INET STREAM SCTP\n"] {
            let options = with_file(file, "curl");
            assert!(options.want(AF_INET, SOCK_STREAM, 0) && options.want(AF_INET6, SOCK_DGRAM, IPPROTO_UDP));
            assert!(options.want(AF_IB, SOCK_STREAM, IPPROTO_TCP));
            assert!(!options.want(AF_UNIX, SOCK_STREAM, 0) && !options.want(AF_INET, SOCK_RAW, IPPROTO_UDP));
            assert!(!options.want(AF_INET, SOCK_STREAM, 132), "SCTP");
        }
    }

    #[test]
    fn a_line_is_for_programs_whose_name_begins_so() {
        let file = "# who\ncurl inet SOCK_STREAM ipproto_tcp\n* PF_INET6 dgram *\n";
        let curl = with_file(file, "Curl-7");
        assert!(curl.want(AF_INET, SOCK_STREAM, 0) && !curl.want(AF_INET, SOCK_DGRAM, 0));
        assert!(curl.want(AF_INET6, SOCK_DGRAM, 0) && !curl.want(AF_INET6, SOCK_STREAM, 0));
        let wget = with_file(file, "wget");
        assert!(!wget.want(AF_INET, SOCK_STREAM, 0) && wget.want(AF_INET6, SOCK_DGRAM, 0));
        assert!(!with_file("curl * * *", "cur").want(AF_INET, SOCK_STREAM, 0));
    }

    #[test]
    fn sizes_come_from_the_environment() {
        let variable = |name: &str| match name {
            "RS_RQ_SIZE" => Some("512".to_owned()),
            "RS_INLINE" => Some("lots".to_owned()),
            "RDMAV_FORK_SAFE" => Some(" 1x".to_owned()),
            _ => None,
        };
        let options = Options::new(variable, "", "");
        assert_eq!(options.sizes().collect::<Vec<_>>(), [(1, 512)]);
        assert!(options.fork_safe);
        assert!(!Options::new(|_| Some("0".to_owned()), "", "").fork_safe);
    }
}
