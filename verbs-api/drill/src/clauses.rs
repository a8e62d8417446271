//! The clauses that cases cite, from `clauses.txt`, and the class of each.

use std::collections::BTreeMap;

const LIST: &str = include_str!("../clauses.txt");

/// Sections of the list about the connection manager.
const MANAGER: [&str; 2] = ["Connection manager", "Messages of the connection manager"];

/// The authority for an expectation, the highest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The standard, as public sources give it.
    Strict,
    /// Known cards and drivers, an optional part of the standard, or a choice of this project.
    Advisory,
    /// The connection manager: software of the host.
    Host,
}

impl Class {
    /// All classes, in their order in reports.
    pub const ALL: [Self; 3] = [Self::Strict, Self::Advisory, Self::Host];

    /// Returns the name of the class in reports.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Advisory => "advisory",
            Self::Host => "host",
        }
    }

    /// Returns the source of the cases of this class.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Strict => "rests on the standard, as public sources give it",
            Self::Advisory => {
                "rests on known cards and drivers, on an optional part of the standard, or on a choice of this project"
            }
            Self::Host => "is about the connection manager, which is software of the host and not the card",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clause {
    /// Heading of the list, such as `Responder: duplicates`.
    pub(crate) section: String,
    /// Sections of the specification, drivers, captures.
    pub(crate) sources: String,
    pub(crate) text: String,
}

impl Clause {
    pub(crate) fn class(&self) -> Class {
        let is_weak = |source: &str| ["unverified", "optional"].iter().any(|word| source.contains(word));
        let is_standard = |source: &str| source.starts_with("IBA ") && !is_weak(source);
        if MANAGER.contains(&self.section.as_str()) {
            Class::Host
        } else if self.sources.split(';').any(|source| is_standard(source.trim())) {
            Class::Strict
        } else {
            Class::Advisory
        }
    }
}

/// Returns the clauses of the list by name.
pub(crate) fn all() -> BTreeMap<String, Clause> {
    let mut clauses = BTreeMap::<String, Clause>::new();
    let (mut section, mut open) = ("", String::new());
    for line in LIST.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title;
        } else if let Some(text) = line.strip_prefix("    ") {
            let is_remark = text.starts_with("uncited:") || text.starts_with("untested:");
            if is_remark {
                open.clear();
            } else if let Some(clause) = clauses.get_mut(&open) {
                clause.text += if clause.text.is_empty() { "" } else { " " };
                clause.text += text.trim();
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
    fn clauses_are_parsed_with_their_texts() {
        let clauses = all();
        assert!(clauses.len() > 150);
        let clause = &clauses["CHECK-ATOMIC-ALIGNED"];
        assert_eq!(clause.section, "Responder: checks and refusals");
        assert_eq!(clause.sources, "IBA 9.7.4");
        assert_eq!(clause.text, "An atomic on an address that is not a multiple of 8 is an invalid request.");
    }

    #[test]
    fn class_follows_section_and_sources() {
        let known = all();
        for (name, class) in [
            ("CHECK-ATOMIC-ALIGNED", Class::Strict),
            ("NAK-IMPLIED", Class::Strict),
            ("TIMER-RANGE", Class::Advisory),
            ("DUP-ACK-BOUND", Class::Advisory),
            ("FLUSH-RESERVED", Class::Advisory),
            ("ATOMIC-WRITE-LENGTH", Class::Advisory),
            ("CNP-WHEN", Class::Advisory),
            ("UD-PORT-MTU", Class::Advisory),
            ("CHECK-ORDER-KEY", Class::Advisory),
            ("PAYLOAD-NONE", Class::Advisory),
            ("INVALIDATE-REFUSED", Class::Advisory),
            ("CM-MRA", Class::Host),
            ("CM-DREQ-UNKNOWN", Class::Host),
        ] {
            assert_eq!(known[name].class(), class, "{name}: {:?}", known[name]);
        }
    }
}
