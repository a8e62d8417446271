//! Configuration from the environment (`RS_SQ_SIZE`, `RS_RQ_SIZE`, `RS_INLINE`, `RDMAV_FORK_SAFE`)
//! and from `/etc/rdma/rsocket/preload_config`.
//!
//! Each line of the file is a rule of four words, any of which may be `*`:
//!
//! - a prefix of the program's name,
//! - the domain `INET`, `INET6` or `IB`, optionally with `AF_` or `PF_`,
//! - the type `STREAM` or `DGRAM`, optionally with `SOCK_`,
//! - the protocol `TCP` or `UDP`, optionally with `IPPROTO_`.
//!
//! Upper and lower case are equal. A socket becomes an rsocket if a rule matches it. Without a
//! valid line, all sockets of all programs match.

use core::ffi::c_int;
use std::sync::OnceLock;

const FILE: &str = "/etc/rdma/rsocket/preload_config";

pub(crate) const AF_IB: c_int = 27;

#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Send queue, receive queue and inline size: options 0, 1 and 2 of level `SOL_RDMA`.
    sizes: [Option<c_int>; 3],
    /// True if connections begin as TCP, for programs that fork and continue in the child.
    pub(crate) fork_safe: bool,
    /// Rules that match this program.
    rules: Vec<Rule>,
}

/// Domain, type and protocol of a rule; `None` is `*`.
type Rule = [Option<c_int>; 3];

pub(crate) fn options() -> &'static Options {
    static OPTIONS: OnceLock<Options> = OnceLock::new();
    OPTIONS.get_or_init(|| {
        let file = std::fs::read_to_string(FILE).unwrap_or_default();
        Options::new(|name| std::env::var(name).ok(), &file, &program())
    })
}

/// Returns the file name of this program.
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
            false => lines.iter().filter(|(prefix, _)| has_prefix(program, prefix)).map(|(_, rule)| *rule).collect(),
        };
        Self {
            sizes: ["RS_SQ_SIZE", "RS_RQ_SIZE", "RS_INLINE"].map(number),
            fork_safe: number("RDMAV_FORK_SAFE").is_some(),
            rules,
        }
    }

    /// Returns the options of level `SOL_RDMA` to set, with their values.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (c_int, c_int)> {
        (0..).zip(self.sizes).filter_map(|(name, size)| Some((name, size?)))
    }

    /// Returns true if such a socket becomes an rsocket. `kind` is the type without flags.
    pub(crate) fn makes_rsocket(&self, domain: c_int, kind: c_int, protocol: c_int) -> bool {
        let default = match kind {
            libc::SOCK_STREAM => libc::IPPROTO_TCP,
            libc::SOCK_DGRAM => libc::IPPROTO_UDP,
            _ => return false,
        };
        let protocol = if protocol == 0 { default } else { protocol };
        let matches = |rule: &Rule| {
            rule.iter().zip([domain, kind, protocol]).all(|(rule, value)| rule.is_none_or(|rule| rule == value))
        };
        protocol == default
            && [libc::AF_INET, libc::AF_INET6, AF_IB].contains(&domain)
            && self.rules.iter().any(matches)
    }
}

/// Parses a number like C's `atoi`; 0 without digits.
fn number(text: &str) -> c_int {
    let text = text.trim_start();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text[..digits].parse().unwrap_or(0)
}

/// Parses a line: prefix of the program's name, and rule. `None` for comments and invalid lines.
fn parse(line: &str) -> Option<(&str, Rule)> {
    let mut words = line.split_whitespace();
    let program = words.next().filter(|word| !word.starts_with('#'))?;
    let domain = parse_word(words.next()?, &["AF_", "PF_"], &DOMAINS)?;
    let kind = parse_word(words.next()?, &["SOCK_"], &KINDS)?;
    let protocol = parse_word(words.next()?, &["IPPROTO_"], &PROTOCOLS)?;
    Some((program, [domain, kind, protocol]))
}

fn has_prefix(program: &str, prefix: &str) -> bool {
    prefix == "*" || program.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

const DOMAINS: [(&str, c_int); 3] = [("INET", libc::AF_INET), ("INET6", libc::AF_INET6), ("IB", AF_IB)];
const KINDS: [(&str, c_int); 2] = [("STREAM", libc::SOCK_STREAM), ("DGRAM", libc::SOCK_DGRAM)];
const PROTOCOLS: [(&str, c_int); 2] = [("TCP", libc::IPPROTO_TCP), ("UDP", libc::IPPROTO_UDP)];

/// Parses a word: `Some(None)` for `*`, `None` if it is invalid.
fn parse_word(word: &str, prefixes: &[&str], names: &[(&str, c_int)]) -> Option<Option<c_int>> {
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
    fn without_rules_all_internet_sockets_match() {
        for file in ["", "# program domain type protocol\n", "incomplete INET\nx INET STREAM SCTP\n"] {
            let options = with_file(file, "curl");
            assert!(
                options.makes_rsocket(AF_INET, SOCK_STREAM, 0)
                    && options.makes_rsocket(AF_INET6, SOCK_DGRAM, IPPROTO_UDP)
            );
            assert!(options.makes_rsocket(AF_IB, SOCK_STREAM, IPPROTO_TCP));
            assert!(
                !options.makes_rsocket(AF_UNIX, SOCK_STREAM, 0)
                    && !options.makes_rsocket(AF_INET, SOCK_RAW, IPPROTO_UDP)
            );
            assert!(!options.makes_rsocket(AF_INET, SOCK_STREAM, 132), "SCTP");
        }
    }

    #[test]
    fn rule_matches_programs_by_prefix() {
        let file = "# comment\ncurl inet SOCK_STREAM ipproto_tcp\n* PF_INET6 dgram *\n";
        let curl = with_file(file, "Curl-7");
        assert!(curl.makes_rsocket(AF_INET, SOCK_STREAM, 0) && !curl.makes_rsocket(AF_INET, SOCK_DGRAM, 0));
        assert!(curl.makes_rsocket(AF_INET6, SOCK_DGRAM, 0) && !curl.makes_rsocket(AF_INET6, SOCK_STREAM, 0));
        let wget = with_file(file, "wget");
        assert!(!wget.makes_rsocket(AF_INET, SOCK_STREAM, 0) && wget.makes_rsocket(AF_INET6, SOCK_DGRAM, 0));
        assert!(!with_file("curl * * *", "cur").makes_rsocket(AF_INET, SOCK_STREAM, 0));
    }

    #[test]
    fn sizes_are_read_from_the_environment() {
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
