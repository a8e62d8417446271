//! Lines and tables on standard output.

use std::error::Error;
use std::fmt::Display;
use std::io::{Write as _, stdout};
use std::{fmt, process};

/// Result of a subcommand. The text of an error names the failure, its object, and a remedy.
pub(crate) type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

/// Prints a line. Ends this process with success if the reader has closed the pipe, as `head` does.
pub(crate) fn line(text: impl Display) {
    if writeln!(stdout().lock(), "{text}").is_err() {
        process::exit(0);
    }
}

/// Quotes `word` for a shell, if necessary.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A table whose first line is the header.
#[derive(Debug)]
pub(crate) struct Table(Vec<Vec<String>>);

impl Table {
    pub(crate) fn new<const N: usize>(columns: [&str; N]) -> Self {
        Self(vec![columns.map(str::to_owned).into()])
    }

    /// Appends a line; missing cells stay empty.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.push(cells.into_iter().collect());
    }

    /// Returns the header, then one line per row, with columns as wide as their widest cells.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut widths = vec![0; self.0[0].len()];
        for row in &self.0 {
            widths.iter_mut().zip(row).for_each(|(width, cell)| *width = cell.chars().count().max(*width));
        }
        let pad = |(cell, width): (&String, &usize)| format!("{cell:width$}  ");
        let line = |row: &Vec<String>| row.iter().zip(&widths).map(pad).collect::<String>().trim_end().to_owned();
        self.0.iter().map(line).collect()
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines().iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_columns_are_aligned() {
        let mut table = Table::new(["name", "µs", ""]);
        table.row(["a".into(), "10".into(), "x".into()]);
        table.row(["long name".into(), "9".into()]);
        assert_eq!(table.to_string(), "name       µs\na          10  x\nlong name  9\n");
    }
}
