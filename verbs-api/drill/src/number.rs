//! Numbers in scripts: `4096`, `0x10`, `200ms`, `psn+1`, `mr.addr+8`, `(n-1)*mtu`.
//!
//! Numbers have 64 bits and wrap. A field of a packet holds the low bits, so PSNs have 24-bit
//! arithmetic. Durations are nanoseconds.

use std::collections::BTreeMap;
use std::fmt;

/// Named numbers of a script.
pub(crate) type Names = BTreeMap<String, u64>;

/// Deepest nesting of brackets, and longest chain of operations.
const MAX_DEPTH: usize = 16;

/// An arithmetic expression of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    root: Node,
    text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Value(u64, NumberUnit),
    Name(String),
    Operation(Box<Self>, char, Box<Self>),
}

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberUnit {
    None,
    /// Time in nanoseconds.
    Time,
    /// Unit of a name.
    Unknown,
}

impl Number {
    /// Parses a duration. It needs a unit: `500` could be meant as milliseconds. Fails with a
    /// description of a text that is not a duration.
    pub(crate) fn parse_time(text: &str) -> Result<Self, String> {
        let number = Self::parse(text)?;
        let missing = || format!("`{text}` has no unit; write {text}ms, or s, us or ns");
        match unit(&number.root).ok_or_else(missing)? {
            NumberUnit::None => Err(missing()),
            _ => Ok(number),
        }
    }

    /// Parses a number. Fails with a description of a text that is not a number.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut rest = text;
        let root = sum(&mut rest, 0)?;
        if !rest.is_empty() {
            return Err(format!("`{rest}` does not belong to the number `{text}`"));
        }
        Ok(Self { root, text: text.to_owned() })
    }

    /// Evaluates the number. Fails if a name is unknown.
    pub(crate) fn value(&self, names: &Names) -> Result<u64, String> {
        self.quotient(names)?.ok_or_else(|| "division by 0".to_owned())
    }

    /// Evaluates the number; `None` if it divides by 0. Fails if a name is unknown.
    pub(crate) fn quotient(&self, names: &Names) -> Result<Option<u64>, String> {
        value(&self.root, names, u64::checked_div)
    }

    /// Evaluates the difference of two times, or a quotient of it; `None` if it divides by 0 or is
    /// negative, because the clock was set back in between. Fails if a name is unknown.
    pub(crate) fn time(&self, names: &Names) -> Result<Option<u64>, String> {
        let time = value(&self.root, names, signed_quotient)?;
        Ok(time.filter(|time| i64::try_from(*time).is_ok()))
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns the unit of `node`; `None` if it adds a time and a number without a unit.
fn unit(node: &Node) -> Option<NumberUnit> {
    let (left, operation, right) = match node {
        Node::Value(_, unit) => return Some(*unit),
        Node::Name(_) => return Some(NumberUnit::Unknown),
        Node::Operation(left, operation, right) => (unit(left)?, operation, unit(right)?),
    };
    match (left, operation, right) {
        (NumberUnit::Time, '/', NumberUnit::Time) => Some(NumberUnit::None),
        (NumberUnit::Time, '*' | '/', _) | (_, '*', NumberUnit::Time) => Some(NumberUnit::Time),
        (NumberUnit::Unknown, '*' | '/', _) | (_, '*' | '/', NumberUnit::Unknown) => Some(NumberUnit::Unknown),
        (left, '+' | '-', NumberUnit::Unknown) => Some(left),
        (NumberUnit::Unknown, '+' | '-', right) => Some(right),
        _ => (left == right).then_some(left),
    }
}

/// Returns the quotient of two numbers in two's complement.
fn signed_quotient(left: u64, right: u64) -> Option<u64> {
    left.cast_signed().checked_div(right.cast_signed()).map(i64::cast_unsigned)
}

/// Evaluates a node; `None` if it divides by 0.
fn value(node: &Node, names: &Names, divide: fn(u64, u64) -> Option<u64>) -> Result<Option<u64>, String> {
    Ok(match node {
        Node::Value(value, _) => Some(*value),
        Node::Name(name) => Some(*names.get(name).ok_or_else(|| format!("there is no name `{name}`"))?),
        Node::Operation(left, operation, right) => {
            let (left, right) = (value(left, names, divide)?, value(right, names, divide)?);
            let operate = |left: u64, right: u64| match operation {
                '+' => Some(left.wrapping_add(right)),
                '-' => Some(left.wrapping_sub(right)),
                '*' => Some(left.wrapping_mul(right)),
                _ => divide(left, right),
            };
            left.zip(right).and_then(|(left, right)| operate(left, right))
        }
    })
}

fn sum(rest: &mut &str, depth: usize) -> Result<Node, String> {
    chain(rest, ['+', '-'], |rest| chain(rest, ['*', '/'], |rest| factor(rest, depth)))
}

fn chain(
    rest: &mut &str,
    operations: [char; 2],
    mut part: impl FnMut(&mut &str) -> Result<Node, String>,
) -> Result<Node, String> {
    let mut left = part(rest)?;
    let mut length = 0;
    while let Some(operation) = rest.chars().next().filter(|next| operations.contains(next)) {
        *rest = &rest[1..];
        length += 1;
        if length > MAX_DEPTH {
            return Err("too many operations in one number".into());
        }
        left = Node::Operation(Box::new(left), operation, Box::new(part(rest)?));
    }
    Ok(left)
}

fn factor(rest: &mut &str, depth: usize) -> Result<Node, String> {
    if let Some(inside) = rest.strip_prefix('(') {
        if depth >= MAX_DEPTH {
            return Err("brackets are nested too deeply".into());
        }
        *rest = inside;
        let node = sum(rest, depth + 1)?;
        *rest = rest.strip_prefix(')').ok_or("a bracket is not closed")?;
        return Ok(node);
    }
    let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.')).unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    *rest = after;
    match word.chars().next() {
        None => Err("a number is missing".into()),
        Some(first) if first.is_ascii_digit() => literal(word),
        Some(_) => Ok(Node::Name(word.to_owned())),
    }
}

fn literal(word: &str) -> Result<Node, String> {
    let wrong = || format!("`{word}` is not a number");
    if let Some(hex) = word.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).map(|value| Node::Value(value, NumberUnit::None)).map_err(|_| wrong());
    }
    let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    let (number, unit) = word.split_at(digits);
    let (factor, unit) = match unit {
        "" => (1, NumberUnit::None),
        "ns" => (1, NumberUnit::Time),
        "us" => (1_000, NumberUnit::Time),
        "ms" => (1_000_000, NumberUnit::Time),
        "s" => (1_000_000_000, NumberUnit::Time),
        _ => return Err(wrong()),
    };
    let value = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    value.map(|value| Node::Value(value, unit)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<u64, String> {
        let names = [("psn".to_owned(), 0xff_ffff), ("mr.addr".to_owned(), 4096)].into_iter().collect();
        Number::parse(text)?.value(&names)
    }

    #[test]
    fn expressions_are_evaluated() {
        for (text, value) in [
            ("7", 7),
            ("0x10", 16),
            ("200ms", 200_000_000),
            ("4us", 4000),
            ("psn+2", 0x100_0001),
            ("mr.addr+8*2", 4112),
            ("(1+2)*3-1", 8),
            ("10-2-3", 5),
            ("7/2", 3),
            ("0-1", u64::MAX),
        ] {
            assert_eq!(of(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn negative_time_has_no_value() {
        let time = |text: &str| Number::parse(text).unwrap().time(&Names::new());
        for (text, value) in
            [("7-2", Some(5)), ("7-7", Some(0)), ("2-7", None), ("(2-7)/2", None), ("(7-2)/2", Some(2)), ("7/0", None)]
        {
            assert_eq!(time(text), Ok(value), "{text}");
        }
        assert!(time("x").is_err());
    }

    #[test]
    fn durations_without_unit_are_refused() {
        for good in ["500ms", "3*20ms/4", "2*4194304ns+500ms", "t", "2*t", "t+1s", "(t+1us)/2", "1s-t"] {
            assert!(Number::parse_time(good).is_ok(), "{good}");
        }
        for bad in ["500", "0x10", "0", "2*500", "1s+5", "5+1s", "1s/1ms", "t+5", "(3+4)*2"] {
            assert!(Number::parse_time(bad).unwrap_err().contains(&format!("`{bad}` has no unit")), "{bad}");
        }
    }

    #[test]
    fn invalid_number_is_reported() {
        for (text, error) in [
            ("", "a number is missing"),
            ("1+", "a number is missing"),
            ("5parsecs", "`5parsecs` is not a number"),
            ("0xzz", "`0xzz` is not a number"),
            ("psm", "there is no name `psm`"),
            ("(1", "a bracket is not closed"),
            ("1)", "`)` does not belong to the number `1)`"),
            ("1/0", "division by 0"),
            (&"(".repeat(100), "brackets are nested too deeply"),
            (&format!("1{}", "+1".repeat(100)), "too many operations in one number"),
        ] {
            assert_eq!(of(text), Err(error.to_owned()), "{text}");
        }
    }
}
