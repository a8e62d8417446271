//! Plain text tables: columns as wide as their widest cell, numbers to the right.
//!
//! Touches nothing.

use std::fmt;

/// Where the cells of a column stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A table with one header line.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: &[(&str, Align)]) -> Self {
        let columns = columns.iter().map(|(name, align)| ((*name).to_owned(), *align)).collect();
        Self { columns, rows: Vec::new() }
    }

    /// Appends a line; cells that are missing stay empty.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn widths(&self) -> Vec<usize> {
        let width = |(i, (name, _)): (usize, &(String, Align))| {
            let cells = self.rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count());
            cells.chain([name.chars().count()]).max().unwrap_or_default()
        };
        self.columns.iter().enumerate().map(width).collect()
    }

    /// The header, then one line per row.
    pub(crate) fn lines(&self) -> Vec<String> {
        let widths = self.widths();
        let header = self.line(&widths, self.columns.iter().map(|(name, _)| name.as_str()));
        let rows = self.rows.iter().map(|row| self.line(&widths, row.iter().map(String::as_str)));
        [header].into_iter().chain(rows).collect()
    }

    fn line<'c>(&self, widths: &[usize], cells: impl Iterator<Item = &'c str>) -> String {
        let mut line = String::new();
        for ((cell, width), (_, align)) in cells.zip(widths).zip(&self.columns) {
            let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
            let (before, behind) = if *align == Align::Right { (pad.as_str(), "") } else { ("", pad.as_str()) };
            line.extend([before, cell, behind, "  "]);
        }
        line.trim_end().to_owned()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines().iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[("name", Align::Left), ("µs", Align::Right), ("", Align::Left)]);
        table.row(["a".into(), "10".into(), "x".into()]);
        table.row(["long name".into(), "9".into()]);
        assert_eq!(table.to_string(), "name       µs\na          10  x\nlong name   9\n");
    }
}
