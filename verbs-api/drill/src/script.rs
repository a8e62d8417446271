//! Parses scripts and unrolls their loops. `docs/reference/scripts.md` is the manual of the
//! language; `steps` has the types of steps, `read` parses a line.

mod read;
pub(crate) mod steps;

use crate::number::{Names, Number};
use std::fmt;
use steps::{Line, Step};

/// Maximum number of cases of a script.
const MAX_CASES: usize = 4096;
/// Maximum length of a script, in bytes.
const MAX_LEN: usize = 1 << 20;
/// Maximum length of a line with the values of loops, in bytes.
const MAX_LINE: usize = 64 << 10;
/// Maximum length of a value of a loop, in bytes.
const MAX_VALUE: usize = 1 << 10;
/// Maximum length of all cases together, in bytes.
const MAX_UNROLLED: usize = 16 << 20;
/// Bytes that a line counts in addition to its text.
const LINE_COST: usize = 64;

/// A parsed script.
#[derive(Debug)]
pub struct Script {
    name: String,
    title: String,
    clauses: Vec<String>,
    cases: Vec<Case>,
}

/// A combination of the values of a script's loops.
#[derive(Debug)]
pub struct Case {
    pub(crate) parameters: Vec<(String, String)>,
    pub(crate) names: Names,
    /// Address families, true for IPv6; the first one that the card has is used.
    pub(crate) is_ipv6: &'static [bool],
    pub(crate) lines: Vec<Line>,
}

/// An invalid line of a script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}:{line}: {what}\n    {text}")]
pub struct ScriptError {
    name: String,
    line: usize,
    what: String,
    text: String,
}

/// A line of the text: its number, and its words without the comment.
type SourceLine<'a> = (usize, &'a str);

impl Script {
    /// Parses a script; its errors begin with `name`. Fails if a line is invalid, or the script is
    /// too long.
    pub fn parse(name: &str, text: &str) -> Result<Self, ScriptError> {
        let error = |line, text: &str, what| ScriptError { name: name.into(), line, what, text: text.into() };
        if text.len() > MAX_LEN {
            return Err(error(1, "", "a script has at most 1 MiB".into()));
        }
        let sources: Vec<SourceLine<'_>> = (1..).zip(text.lines().map(read::without_comment)).collect();
        let sources: Vec<_> = sources.into_iter().filter(|(_, line)| !line.is_empty()).collect();
        let mut script = Self { name: name.into(), title: String::new(), clauses: Vec::new(), cases: Vec::new() };
        let mut combinations = vec![Vec::new()];
        for (number, line) in &sources {
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            match word {
                "title" => script.title = rest.trim().into(),
                "clause" => script.clauses.extend(rest.split(',').map(|clause| clause.trim().into())),
                "for" => {
                    combinations = combine(combinations, rest).map_err(|what| error(*number, line, what))?;
                }
                _ => {}
            }
        }
        if script.title.is_empty() {
            return Err(error(1, "", "a script begins with its title".into()));
        }
        let mut room = MAX_UNROLLED;
        for parameters in combinations {
            let unrolled = unroll(&sources, parameters, &mut room);
            let case = unrolled.map_err(|(line, text, what)| error(line, &text, what))?;
            script.cases.push(case);
        }
        Ok(script)
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the title.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Returns the clauses of the protocol that the script cites.
    pub fn clauses(&self) -> &[String] {
        &self.clauses
    }

    /// Returns a case for each combination of loop values; a script without loops has one case.
    pub fn cases(&self) -> &[Case] {
        &self.cases
    }
}

impl fmt::Display for Case {
    /// Writes the values of loops, which identify a case in its script.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.parameters.iter().enumerate() {
            write!(f, "{}{name}={value}", if index == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// Names of loops and their values.
type Parameters = Vec<(String, String)>;

/// Combines `combinations` with each turn of a loop: `mtu in 256 1024`, or with several names
/// `opcode, length in SEND_ONLY 0; SEND_LAST 1`.
fn combine(combinations: Vec<Parameters>, text: &str) -> Result<Vec<Parameters>, String> {
    let (names, values) = text.split_once(" in ").ok_or("a loop is `for NAME in VALUE...`")?;
    let names: Vec<_> = names.split(',').map(str::trim).collect();
    // Values of several words are quoted.
    let bare = |value: &'_ str| value.trim_matches('"').to_owned();
    let turns: Vec<Vec<_>> = if names.len() == 1 {
        read::split(values).map(|value| vec![bare(value)]).collect()
    } else {
        values.split(';').map(|turn| read::split(turn).map(bare).collect()).collect()
    };
    if turns.is_empty() || turns.iter().any(|turn| turn.len() != names.len()) {
        return Err(format!("each turn of this loop has {} values", names.len()));
    }
    if turns.iter().flatten().any(|value| value.len() > MAX_VALUE) {
        return Err(format!("a value of a loop has at most {MAX_VALUE} bytes"));
    }
    if combinations.len().saturating_mul(turns.len()) > MAX_CASES {
        return Err(format!("the loops of this script make more than {MAX_CASES} cases"));
    }
    let mut all = Vec::new();
    for parameters in &combinations {
        for turn in &turns {
            let more = names.iter().zip(turn).map(|(name, value)| ((*name).to_owned(), value.clone()));
            all.push(parameters.iter().cloned().chain(more).collect());
        }
    }
    Ok(all)
}

/// An invalid line: its number, its text with values of loops, and the reason.
type LineError = (usize, String, String);

/// Replaces the names of loops in `line` by their values.
fn substitute(line: &str, parameters: &Parameters) -> Result<String, String> {
    let fits = |text: String| {
        let why = || format!("a line has at most {MAX_LINE} bytes, with the values of loops in it");
        if text.len() <= MAX_LINE { Ok(text) } else { Err(why()) }
    };
    parameters
        .iter()
        .try_fold(fits(line.to_owned())?, |text, (name, value)| fits(text.replace(&format!("{{{name}}}"), value)))
}

/// Builds one case of a script, and subtracts its size from `room`.
fn unroll(sources: &[SourceLine<'_>], parameters: Parameters, room: &mut usize) -> Result<Case, LineError> {
    let number = |value: &String| Number::parse(value).ok()?.value(&Names::new()).ok();
    let names = parameters.iter().filter_map(|(name, value)| Some((name.clone(), number(value)?))).collect();
    let mut case = Case { names, parameters, is_ipv6: &[false, true], lines: Vec::new() };
    let mut service = String::from("RC");
    // The blocks around the current line, with their lines so far.
    let mut open_blocks: Vec<(Line, Vec<Line>)> = Vec::new();
    for (at, line) in sources {
        let (head, _) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        if ["title", "clause", "for"].contains(&head) {
            continue;
        }
        let start = || line.chars().take(100).collect::<String>();
        let text = substitute(line, &case.parameters).map_err(|what| (*at, start(), what))?;
        *room = room.checked_sub(text.len() + LINE_COST).ok_or_else(|| {
            let cases = format!("with its loops unrolled the script is longer than {} MiB", MAX_UNROLLED >> 20);
            (*at, start(), cases)
        })?;
        let error = |what: String| (*at, text.clone(), what);
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((&text, ""));
        let rest = rest.trim();
        match word {
            "service" => service = rest.into(),
            "family" => {
                case.is_ipv6 = match rest {
                    "any" => &[false, true],
                    "ipv4" => &[false],
                    "ipv6" => &[true],
                    _ => return Err(error("a family is ipv4, ipv6 or any".into())),
                }
            }
            "end" => {
                let (mut block, lines) = open_blocks.pop().ok_or_else(|| error("there is no open block".into()))?;
                if let Step::Repeat(_, inside) = &mut block.step {
                    *inside = lines;
                }
                open_blocks.last_mut().map_or(&mut case.lines, |(_, lines)| lines).push(block);
            }
            _ => {
                let step = read::step(&service, word, rest).map_err(error)?;
                let line = Line { number: *at, text, step };
                match line.step {
                    Step::Repeat(..) if open_blocks.len() >= 8 => {
                        return Err((line.number, line.text, "blocks are nested too deeply".into()));
                    }
                    Step::Repeat(..) => open_blocks.push((line, Vec::new())),
                    _ => open_blocks.last_mut().map_or(&mut case.lines, |(_, lines)| lines).push(line),
                }
            }
        }
    }
    match open_blocks.pop() {
        Some((block, _)) => Err((block.number, block.text, "this block has no end".into())),
        None => Ok(case),
    }
}

#[cfg(test)]
mod tests;
