//! What the protocol asks, from `tests/clauses.txt`: the words behind the names that scripts cite.

use std::collections::BTreeMap;

const LIST: &str = include_str!("../clauses.txt");

/// A clause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clause {
    /// The part of the protocol.
    pub(crate) section: String,
    /// Where it comes from: sections of the specification, drivers, captures.
    pub(crate) sources: String,
    /// What it asks.
    pub(crate) text: String,
}

/// All clauses by name.
pub(crate) fn all() -> BTreeMap<String, Clause> {
    let mut clauses = BTreeMap::<String, Clause>::new();
    let (mut section, mut open) = ("", String::new());
    for line in LIST.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title;
        } else if let Some(told) = line.strip_prefix("    ") {
            let is_remark = told.starts_with("uncited:") || told.starts_with("untested:");
            if is_remark {
                open.clear();
            } else if let Some(clause) = clauses.get_mut(&open) {
                clause.text += if clause.text.is_empty() { "" } else { " " };
                clause.text += told.trim();
            }
        } else if let Some((id, sources)) = line.strip_suffix(')').and_then(|line| line.split_once(" ("))
            && !line.starts_with('#')
        {
            open = id.into();
            let clause = Clause { section: section.into(), sources: sources.into(), text: String::new() };
            clauses.insert(id.into(), clause);
        }
    }
    clauses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clauses_have_their_words() {
        let clauses = all();
        assert!(clauses.len() > 150);
        let clause = &clauses["CHECK-ATOMIC-ALIGNED"];
        assert_eq!(clause.section, "Responder: checks and refusals");
        assert_eq!(clause.sources, "IBA 9.7.4");
        assert_eq!(clause.text, "An atomic on an address that is not a multiple of 8 is an invalid request.");
    }
}
