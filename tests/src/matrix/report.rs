//! Formats the results of a run: as a table for people, as JSON and JUnit XML for programs.

use super::stock::ProgramResult;
use super::{Condition, Ending, Group, GroupResult, Service};
use crate::junit::{self, Case};
use crate::report::Verdict;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

/// Results of a run.
#[derive(Debug, Default)]
pub struct Results {
    /// Seed of message bytes and fault rules.
    pub seed: u64,
    /// Version of the guest's kernel.
    pub kernel: String,
    /// Results of the matrix.
    pub groups: Vec<GroupResult>,
    /// Results of stock programs.
    pub stock: Vec<ProgramResult>,
}

/// Numbers of results by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of results that passed.
    pub passed: usize,
    /// Number of results that failed, without known defects of rxe.
    pub failed: usize,
    /// Number of skipped results.
    pub skipped: usize,
    /// Failed by a known defect of rxe.
    pub peer_bugs: usize,
}

impl Count {
    /// Counts `endings` by kind.
    pub fn of<'a>(endings: impl Iterator<Item = &'a Ending>) -> Self {
        let mut count = Self::default();
        for ending in endings {
            *match ending {
                Ending::Passed => &mut count.passed,
                Ending::Failed(_) => &mut count.failed,
                Ending::Skipped(_) => &mut count.skipped,
                Ending::PeerBug(_) => &mut count.peer_bugs,
            } += 1;
        }
        count
    }

    /// Returns the total number.
    pub fn total(&self) -> usize {
        self.passed + self.failed + self.skipped + self.peer_bugs
    }
}

impl Results {
    /// Counts the results of the cells.
    pub fn cells(&self) -> Count {
        Count::of(self.groups.iter().flat_map(|g| g.cells.iter().map(|t| &t.ending)))
    }

    /// Counts the results of the stock programs.
    pub fn pairs(&self) -> Count {
        Count::of(self.stock.iter().map(|s| &s.ending))
    }

    /// Returns the number of captured packets, and of those that tshark reports as bad.
    pub fn packets(&self) -> (u64, u64) {
        let verdicts = self.groups.iter().map(|g| &g.capture).chain(self.stock.iter().map(|s| &s.capture));
        verdicts.flatten().fold((0, 0), |(packets, bad), v| (packets + v.packets, bad + v.bad))
    }

    /// Returns true if nothing failed.
    pub fn good(&self) -> bool {
        self.cells().failed == 0 && self.pairs().failed == 0 && self.packets().1 == 0
    }

    /// Returns a table for each condition, with a line per operation and a column per group.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for condition in Condition::ALL {
            self.condition(&mut text, condition);
        }
        text
    }

    /// Returns the details of every result that is not a pass.
    pub fn exceptions(&self) -> String {
        self.named().map(|(name, ending)| exception(&name, ending)).collect()
    }

    /// Returns the summary lines. Scripts parse the last one.
    pub fn summary(&self) -> String {
        let (cells, pairs, (packets, bad)) = (self.cells(), self.pairs(), self.packets());
        let mut text = String::new();
        if packets > 0 {
            _ = writeln!(text, "{packets} packets captured, {bad} malformed or with errors by tshark's judgement");
        }
        if pairs.total() > 0 {
            _ = writeln!(text, "{} stock program pairs, {}", pairs.total(), ended(&pairs));
        }
        _ = writeln!(text, "seed {}, rxe of Linux {}", self.seed, self.kernel);
        _ = writeln!(text, "{} cells, {}", cells.total(), ended(&cells));
        // A cell that failed because of a bug of rxe counts as skipped.
        let failed = cells.failed + pairs.failed + usize::from(bad > 0);
        let skipped = [&cells, &pairs].map(|count| count.skipped + count.peer_bugs).iter().sum::<usize>();
        _ = writeln!(text, "{} passed, {failed} failed, {skipped} skipped", cells.passed + pairs.passed);
        text
    }

    /// Appends the table of one condition to `text`.
    fn condition(&self, text: &mut String, condition: Condition) {
        let groups: Vec<&GroupResult> = self.groups.iter().filter(|g| g.group.condition == condition).collect();
        if groups.is_empty() {
            return;
        }
        _ = write!(text, "\n{:<14}", condition.to_string());
        for group in &groups {
            _ = write!(text, " {:>15}", format!("{} {}", group.group.direction, group.group.ip));
        }
        text.push('\n');
        for service in Service::ALL {
            for op in service.ops() {
                _ = write!(text, "{:<14}", format!("{} {op}", service.name()));
                for group in &groups {
                    let row = group.cells.iter().filter(|t| (t.cell.service, t.cell.op) == (service, *op));
                    _ = write!(text, " {:>15}", fraction(&Count::of(row.map(|t| &t.ending))));
                }
                text.push('\n');
            }
        }
        _ = write!(text, "{:<14}", "seconds");
        groups.iter().for_each(|g| _ = write!(text, " {:>15.1}", g.seconds));
        text.push('\n');
    }

    fn named(&self) -> impl Iterator<Item = (String, &Ending)> {
        let cells =
            self.groups.iter().flat_map(|g| g.cells.iter().map(|t| (format!("{} {}", g.group, t.cell), &t.ending)));
        cells.chain(self.stock.iter().map(|s| (s.name.clone(), &s.ending)))
    }

    /// Writes `matrix.txt`, `matrix.json` and `matrix.xml` into `folder`.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("matrix.txt"), format!("{}\n{}{}", self.table(), self.exceptions(), self.summary()))?;
        fs::write(folder.join("matrix.json"), self.json())?;
        fs::write(folder.join("matrix.xml"), self.junit())
    }

    /// Returns all results as one JSON object.
    fn json(&self) -> String {
        let cells = self.groups.iter().flat_map(|g| g.cells.iter().map(move |t| (g.group, t)));
        let cells = cells.map(|(Group { direction, ip, condition }, t)| {
            format!(
                "{{\"direction\":\"{direction}\",\"ip\":\"{ip}\",\"condition\":\"{condition}\",\"service\":\"{}\",\"op\":\"{}\",\
                 \"size\":{},\"mtu\":{},\"milliseconds\":{},{}}}",
                t.cell.service.name(),
                t.cell.op.name(),
                t.cell.size,
                t.cell.mtu,
                t.milliseconds,
                json_ending(&t.ending)
            )
        });
        let stock = self.stock.iter().map(|s| {
            format!("{{\"name\":{},\"seconds\":{:.3},{}}}", json_string(&s.name), s.seconds, json_ending(&s.ending))
        });
        let (packets, bad) = self.packets();
        format!(
            "{{\"seed\":{},\"kernel\":{},\"packets\":{packets},\"bad_packets\":{bad},\n\"cells\":[\n{}\n],\n\"stock\":[\n{}\n]}}\n",
            self.seed,
            json_string(&self.kernel),
            cells.collect::<Vec<_>>().join(",\n"),
            stock.collect::<Vec<_>>().join(",\n")
        )
    }

    /// Returns a JUnit suite for each group, and one for the stock programs.
    fn junit(&self) -> String {
        let groups = self.groups.iter().map(|group| {
            let ended = group.cells.iter().map(|t| (t.cell.to_string(), seconds(t.milliseconds), &t.ending));
            let output =
                group.capture.as_ref().map(|v| format!("{} packets, {} bad\n{}", v.packets, v.bad, v.examples));
            suite(&group.group.to_string(), ended, output.as_deref())
        });
        let stock = self.stock.iter().map(|s| (s.name.clone(), s.seconds, &s.ending));
        junit::document(&groups.chain([suite("stock programs", stock, None)]).collect::<Vec<_>>())
    }
}

/// Returns the details of a result that is not a pass: a line, or a paragraph for a failure.
pub fn exception(name: &str, ending: &Ending) -> String {
    match ending {
        Ending::Passed => String::new(),
        Ending::Failed(why) => format!("FAILED   {name}\n{}", indent(why)),
        Ending::Skipped(why) => format!("skipped  {name}: {why}\n"),
        Ending::PeerBug(why) => format!("rxe bug  {name}: {why}\n"),
    }
}

fn indent(text: &str) -> String {
    text.lines().fold(String::new(), |all, line| all + "         | " + line + "\n")
}

fn ended(count: &Count) -> String {
    let Count { passed, failed, skipped, peer_bugs } = count;
    let bugs = if *peer_bugs > 0 { format!(", rxe bugs: {peer_bugs}") } else { String::new() };
    format!("{passed} passed, {failed} failed, skipped: {skipped}{bugs}")
}

/// Returns "21" if all passed, "19/21" if some did not, "-" if there are no results.
fn fraction(count: &Count) -> String {
    match (count.passed, count.total()) {
        (_, 0) => "-".to_owned(),
        (passed, total) if passed == total => total.to_string(),
        (passed, total) => format!("{passed}/{total}"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a cell takes minutes at most")]
fn seconds(milliseconds: u64) -> f32 {
    milliseconds as f32 / 1000.0
}

fn json_ending(ending: &Ending) -> String {
    let (word, detail) = match ending {
        Ending::Passed => ("passed", ""),
        Ending::Failed(why) => ("failed", why.as_str()),
        Ending::Skipped(why) => ("skipped", why.as_str()),
        Ending::PeerBug(why) => ("rxe bug", why.as_str()),
    };
    format!("\"result\":\"{word}\",\"detail\":{}", json_string(detail))
}

fn json_string(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c if c < ' ' => _ = write!(out, "\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out + "\""
}

fn suite<'a>(name: &str, ended: impl Iterator<Item = (String, f32, &'a Ending)>, output: Option<&str>) -> String {
    let ended: Vec<_> = ended.map(|(name, seconds, ending)| (name, seconds, verdict(ending))).collect();
    let cases = ended.iter().map(|(name, seconds, verdict)| Case { name: name.clone(), seconds: *seconds, verdict });
    junit::suite(name, &cases.collect::<Vec<_>>(), output)
}

fn verdict(ending: &Ending) -> Verdict {
    match ending {
        Ending::Passed => Verdict::Passed,
        Ending::Failed(why) => Verdict::Failed(why.clone()),
        Ending::Skipped(why) => Verdict::Skipped(why.clone()),
        Ending::PeerBug(why) => Verdict::Skipped(format!("rxe bug: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{Cell, CellResult, Direction, Ip, Op};

    fn results(endings: Vec<Ending>) -> Results {
        let cell = Cell { service: Service::Uc, op: Op::Write, size: 1, mtu: 256 };
        let group = Group { direction: Direction::RxeToRoxe, ip: Ip::V6, condition: Condition::Netem };
        let cells = endings.into_iter().map(|ending| CellResult { cell, ending, milliseconds: 7 }).collect();
        let judged = GroupResult { group, cells, seconds: 1.5, capture: None };
        Results { seed: 5, kernel: "6.1".into(), groups: vec![judged], stock: Vec::new() }
    }

    #[test]
    fn results_with_a_failure_are_not_good() {
        let text = results(vec![Ending::Passed, Ending::Passed]).summary();
        assert!(text.ends_with("2 cells, 2 passed, 0 failed, skipped: 0\n2 passed, 0 failed, 0 skipped\n"), "{text}");
        assert!(!results(vec![Ending::Passed, Ending::Failed("x".into())]).good());
    }

    #[test]
    fn failure_is_named_in_every_report() {
        let results = results(vec![Ending::Failed("wrong \"byte\" <5>\n".into()), Ending::PeerBug("known".into())]);
        let name = "rxe->roxe ipv6 netem UC write size=1 mtu=256";
        let (table, exceptions) = (results.table(), results.exceptions());
        assert!(exceptions.contains(&format!("FAILED   {name}\n         | wrong \"byte\" <5>")), "{exceptions}");
        assert!(exceptions.contains(&format!("rxe bug  {name}: known")), "{exceptions}");
        assert!(table.lines().any(|l| l.starts_with("UC write ") && l.ends_with("0/2")), "{table}");
        assert!(results.json().contains(r#""result":"failed","detail":"wrong \"byte\" <5>\n""#));
        assert!(results.junit().contains("<failure>wrong &quot;byte&quot; &lt;5&gt;\n</failure>"));
    }
}
