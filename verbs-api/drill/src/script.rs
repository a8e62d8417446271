//! Scripts: a text, its loops unrolled, each line a step.
//!
//! `docs/reference/scripts.md` is the manual of the language. `steps` has what a step says, `read`
//! takes lines apart and makes steps of words. Nothing here runs anything.

mod read;
pub(crate) mod steps;

use crate::number::{Names, Number};
use std::fmt;
use steps::{Line, Step};

/// The most cases that the loops of one script make.
const MAX_CASES: usize = 4096;
/// The most bytes of a script.
const MAX_LEN: usize = 1 << 20;
/// The most bytes of a line, with the values of loops in it, and of such a value.
const MAX_LINE: usize = 64 << 10;
const MAX_VALUE: usize = 1 << 10;
/// The most bytes of all cases together, and what a line counts besides its text.
const MAX_UNROLLED: usize = 16 << 20;
const LINE_COST: usize = 64;

/// A script that can be run.
#[derive(Debug)]
pub struct Script {
    name: String,
    title: String,
    clauses: Vec<String>,
    cases: Vec<Case>,
}

/// One way through the loops of a script.
#[derive(Debug)]
pub struct Case {
    pub(crate) parameters: Vec<(String, String)>,
    pub(crate) names: Names,
    /// Whether addresses are IPv6; of several choices, the first one that the card has.
    pub(crate) is_ipv6: &'static [bool],
    pub(crate) lines: Vec<Line>,
}

/// What is wrong with a script, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}:{line}: {what}\n    {text}")]
pub struct ScriptError {
    name: String,
    line: usize,
    what: String,
    text: String,
}

/// A line of the text: its number, and what it says without its comment.
type Source<'a> = (usize, &'a str);

impl Script {
    /// Reads the text of a script. `name` is what errors call it.
    ///
    /// # Errors
    /// The first line that says nothing that can be done.
    pub fn parse(name: &str, text: &str) -> Result<Self, ScriptError> {
        let error = |line, text: &str, what| ScriptError { name: name.into(), line, what, text: text.into() };
        if text.len() > MAX_LEN {
            return Err(error(1, "", "a script has at most a megabyte".into()));
        }
        let sources: Vec<Source<'_>> = (1..).zip(text.lines().map(read::without_comment)).collect();
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

    /// What errors call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it shows.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The clauses of the protocol that it is about.
    pub fn clauses(&self) -> &[String] {
        &self.clauses
    }

    /// The ways through its loops; one if it has none.
    pub fn cases(&self) -> &[Case] {
        &self.cases
    }
}

impl fmt::Display for Case {
    /// The values of its loops, as they tell it from others of its script.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.parameters.iter().enumerate() {
            write!(f, "{}{name}={value}", if index == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// Names of loops and their values.
type Parameters = Vec<(String, String)>;

/// Each of `combinations` with each turn of the loop `names in values`: `mtu in 256 1024`, or with
/// several names `opcode, length in SEND_ONLY 0; SEND_LAST 1`.
fn combine(combinations: Vec<Parameters>, text: &str) -> Result<Vec<Parameters>, String> {
    let (names, values) = text.split_once(" in ").ok_or("a loop is `for NAME in VALUE...`")?;
    let names: Vec<_> = names.split(',').map(str::trim).collect();
    // A value of several words stands in quotes.
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
        return Err(format!("the loops of a script make at most {MAX_CASES} cases"));
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

/// A line that says nothing: its number, its text with the values of loops in it, and why.
type Complaint = (usize, String, String);

/// `line` with the values of loops in it.
fn filled(line: &str, parameters: &Parameters) -> Result<String, String> {
    let fits = |text: String| {
        let why = || format!("a line has at most {MAX_LINE} bytes, with the values of loops in it");
        if text.len() <= MAX_LINE { Ok(text) } else { Err(why()) }
    };
    parameters
        .iter()
        .try_fold(fits(line.to_owned())?, |text, (name, value)| fits(text.replace(&format!("{{{name}}}"), value)))
}

/// One case of a script; what it takes of memory is taken from `room`.
fn unroll(sources: &[Source<'_>], parameters: Parameters, room: &mut usize) -> Result<Case, Complaint> {
    let number = |value: &String| Number::parse(value).ok()?.value(&Names::new()).ok();
    let names = parameters.iter().filter_map(|(name, value)| Some((name.clone(), number(value)?))).collect();
    let mut case = Case { names, parameters, is_ipv6: &[false, true], lines: Vec::new() };
    let mut service = String::from("RC");
    // The blocks around the current line, with the count of each.
    let mut open: Vec<(Line, Vec<Line>)> = Vec::new();
    for (at, line) in sources {
        let (head, _) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        if ["title", "clause", "for"].contains(&head) {
            continue;
        }
        let start = || line.chars().take(100).collect::<String>();
        let text = filled(line, &case.parameters).map_err(|what| (*at, start(), what))?;
        *room = room.checked_sub(text.len() + LINE_COST).ok_or_else(|| {
            let cases = format!("with its loops unrolled the script is longer than {} MiB", MAX_UNROLLED >> 20);
            (*at, start(), cases)
        })?;
        let complain = |what: String| (*at, text.clone(), what);
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((&text, ""));
        let rest = rest.trim();
        match word {
            "service" => service = rest.into(),
            "family" => case.is_ipv6 = family(rest).map_err(complain)?,
            "end" => {
                let (mut block, lines) = open.pop().ok_or_else(|| complain("nothing is open here".into()))?;
                if let Step::Repeat(_, inside) = &mut block.step {
                    *inside = lines;
                }
                open.last_mut().map_or(&mut case.lines, |(_, lines)| lines).push(block);
            }
            _ => {
                let step = read::step(&service, word, rest).map_err(complain)?;
                let line = Line { number: *at, text, step };
                match line.step {
                    Step::Repeat(..) if open.len() >= 8 => {
                        return Err((line.number, line.text, "too many blocks in each other".into()));
                    }
                    Step::Repeat(..) => open.push((line, Vec::new())),
                    _ => open.last_mut().map_or(&mut case.lines, |(_, lines)| lines).push(line),
                }
            }
        }
    }
    match open.pop() {
        Some((block, _)) => Err((block.number, block.text, "this block has no end".into())),
        None => Ok(case),
    }
}

fn family(text: &str) -> Result<&'static [bool], String> {
    match text {
        "any" => Ok(&[false, true]),
        "ipv4" => Ok(&[false]),
        "ipv6" => Ok(&[true]),
        _ => Err("a family is ipv4, ipv6 or any".into()),
    }
}

#[cfg(test)]
mod tests;
