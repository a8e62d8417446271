//! Bytes of memory as runs, `[HEX, TIMES]` each: most of a region is what it was filled with, and
//! the processor beside a card may be a slow one. Pure.

use super::{from_hex, to_hex};
use serde_json::{Value, json};

/// As many equal bytes are worth a run of their own.
const LEAST: usize = 16;

/// The runs of these bytes.
#[must_use]
pub fn to_runs(bytes: &[u8]) -> Value {
    let mut runs = Vec::new();
    let mut say = |bytes: &[u8], times: usize| {
        if !bytes.is_empty() {
            runs.push(json!([to_hex(bytes), times]));
        }
    };
    let (mut said, mut end) = (0, 0);
    for equal in bytes.chunk_by(|a, b| a == b) {
        let begin = end;
        end += equal.len();
        if equal.len() >= LEAST {
            say(&bytes[said..begin], 1);
            say(&equal[..1], equal.len());
            said = end;
        }
    }
    say(&bytes[said..], 1);
    Value::Array(runs)
}

/// The bytes of these runs; `None` if they are none, or not `len` bytes.
#[must_use]
pub fn from_runs(runs: &Value, len: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for run in runs.as_array()? {
        let (part, times) = (from_hex(run[0].as_str()?)?, usize::try_from(run[1].as_u64()?).ok()?);
        if part.len().checked_mul(times)? > len - bytes.len() {
            return None;
        }
        bytes.extend(part.repeat(times));
    }
    (bytes.len() == len).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_runs_of_comes_back() {
        let mut bytes = [7; 100];
        for (len, at, byte) in [(0, 0, 7), (1, 0, 7), (15, 3, 1), (16, 3, 1), (100, 0, 1), (100, 99, 1), (100, 50, 1)] {
            bytes[at] = byte;
            assert_eq!(from_runs(&to_runs(&bytes[..len]), len).as_deref(), Some(&bytes[..len]));
        }
    }

    #[test]
    fn equal_bytes_are_one_run() {
        let mut bytes = vec![7; 8192];
        assert_eq!(to_runs(&bytes), json!([["07", 8192]]));
        bytes[4000] = 1;
        assert_eq!(to_runs(&bytes), json!([["07", 4000], ["01", 1], ["07", 4191]]));
    }

    #[test]
    fn runs_of_another_length_are_refused() {
        for runs in [json!([["07", 5]]), json!([["07", 3]]), json!([["0707", u64::MAX]]), json!([["0", 4]]), json!(4)] {
            assert_eq!(from_runs(&runs, 4), None, "{runs}");
        }
        assert_eq!(from_runs(&json!([["", 9], ["0707", 2]]), 4), Some(vec![7; 4]));
    }
}
