//! What subcommands print: lines while something goes on, and plain text tables, columns as wide as
//! their widest cell.

use std::fmt::Display;
use std::io::{Write as _, stdout};
use std::{fmt, process};

/// Prints a line. Where nobody reads any more, as behind `head`, there is no reason to go on: the
/// program ends, as successfully as it does where it finds that out at its end.
pub(crate) fn line(text: impl Display) {
    if writeln!(stdout().lock(), "{text}").is_err() {
        process::exit(0);
    }
}

/// A table whose first line is the header.
#[derive(Debug)]
pub(crate) struct Table(Vec<Vec<String>>);

impl Table {
    pub(crate) fn new<const N: usize>(columns: [&str; N]) -> Self {
        Self(vec![columns.map(str::to_owned).into()])
    }

    /// Appends a line; cells that are missing stay empty.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.push(cells.into_iter().collect());
    }

    /// The header, then one line per row.
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
    fn columns_line_up() {
        let mut table = Table::new(["name", "µs", ""]);
        table.row(["a".into(), "10".into(), "x".into()]);
        table.row(["long name".into(), "9".into()]);
        assert_eq!(table.to_string(), "name       µs\na          10  x\nlong name  9\n");
    }
}
