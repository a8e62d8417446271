//! Numbers that scripts measure for the report, without a verdict: `figure NAME time NUMBER`.

use std::time::Duration;

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Time in nanoseconds.
    Time,
    /// Number without a unit.
    Number,
}

impl Unit {
    /// Returns the unit with this name.
    pub(crate) fn of(word: &str) -> Option<Self> {
        [Self::Time, Self::Number].into_iter().find(|unit| unit.word() == word)
    }

    /// Returns the name of the unit in scripts and reports.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Number => "number",
        }
    }

    /// Returns a value with its unit, as in scripts.
    pub fn show(self, value: u64) -> String {
        match self {
            Self::Time => format!("{:.1?}", Duration::from_nanos(value)).replace('µ', "u"),
            Self::Number => value.to_string(),
        }
    }
}

/// A measured number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Name in the script.
    pub name: String,
    /// Unit of the value.
    pub unit: Unit,
    /// Nanoseconds or a count.
    pub value: u64,
}

/// All values of a figure in one case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Name in the script.
    pub name: String,
    /// Unit of the values.
    pub unit: Unit,
    /// Values, smallest first; at least one.
    values: Vec<u64>,
}

impl Series {
    /// Joins the figures of a case by name, in the order of their first values.
    pub fn of(figures: &[Figure]) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for Figure { name, unit, value } in figures {
            match all.iter_mut().find(|series| series.name == *name) {
                Some(series) => series.values.push(*value),
                None => all.push(Self { name: name.clone(), unit: *unit, values: vec![*value] }),
            }
        }
        all.iter_mut().for_each(|series| series.values.sort_unstable());
        all
    }

    /// Returns the smallest value, the median and the largest value.
    pub fn range(&self) -> [u64; 3] {
        let last = self.values.len() - 1;
        [0, last / 2, last].map(|at| self.values[at])
    }

    /// Returns the number of values.
    pub const fn count(&self) -> usize {
        self.values.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_has_least_median_and_largest_value() {
        let figure = |name: &str, value| Figure { name: name.into(), unit: Unit::Time, value };
        let figures = [figure("b", 9), figure("a", 7), figure("b", 1), figure("b", 3)];
        let [b, a] = Series::of(&figures).try_into().unwrap();
        assert_eq!((b.name.as_str(), b.range(), b.count()), ("b", [1, 3, 9], 3));
        assert_eq!((a.range(), a.count()), ([7; 3], 1));
    }

    #[test]
    fn value_has_the_unit_of_scripts() {
        assert_eq!(Unit::Time.show(163_840_000), "163.8ms");
        assert_eq!(Unit::Time.show(50_123), "50.1us");
        assert_eq!(Unit::Number.show(3), "3");
    }
}
