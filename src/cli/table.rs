//! Tables and figures for people: columns in line, at most as wide as the terminal.

use kubetide_sink::format::{cut_end, cut_middle, shown, width};

/// Between two columns.
const GAP: usize = 2;

/// Rows under a heading.
pub(super) struct Table {
    heading: Vec<&'static str>,
    /// Columns of figures stand at the right.
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
    /// What has been told so far, if anything: rows that come later stand under the same heading.
    told: Option<Vec<usize>>,
}

impl Table {
    /// A heading that begins with `>` is over figures.
    pub(super) fn new(heading: &[&'static str]) -> Self {
        let right = heading.iter().map(|word| word.starts_with('>')).collect();
        Self {
            heading: heading.iter().map(|word| word.trim_start_matches('>')).collect(),
            right,
            rows: Vec::new(),
            told: None,
        }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| shown(&cell)).collect());
    }

    /// The rows since it was asked for last, the first time under the heading; in at most `room` columns if the widest column
    /// of words can be cut to that, else the ends of the lines are cut off.
    pub(super) fn text(&mut self, room: usize) -> String {
        let heading: Vec<String> = self.heading.iter().map(|word| (*word).to_owned()).collect();
        let given = std::mem::take(&mut self.rows);
        let rows = || self.told.is_none().then_some(&heading).into_iter().chain(&given);
        let told = |column: usize| self.told.as_ref().map_or(0, |widths| widths[column]);
        let widest = |column: usize| {
            let cells = rows().filter_map(|row| row.get(column)).map(|cell| width(cell));
            cells.max().unwrap_or(0).max(told(column))
        };
        let mut widths: Vec<usize> = (0..self.heading.len()).map(widest).collect();
        let total = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * (widths.len().saturating_sub(1));
        while total(&widths) > room {
            // The widest column of words gives way, a column at a time, but never below its heading.
            let words = widths
                .iter()
                .enumerate()
                .filter(|(column, wide)| !self.right[*column] && **wide > width(self.heading[*column]).max(6));
            match words.max_by_key(|(_, wide)| **wide).map(|(column, _)| column) {
                Some(column) => widths[column] -= 1,
                None => break,
            }
        }
        let mut text = String::new();
        for row in rows() {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let cell = if self.right[column] { cell.clone() } else { cut_middle(cell, widths[column]) };
                let padding = " ".repeat(widths[column].saturating_sub(width(&cell)));
                let gap = if column == 0 { "" } else { "  " };
                line.push_str(&if self.right[column] {
                    format!("{gap}{padding}{cell}")
                } else {
                    format!("{gap}{cell}{padding}")
                });
            }
            text.push_str(&cut_end(line.trim_end(), room));
            text.push('\n');
        }
        self.told = Some(widths);
        text
    }
}

/// `12.3 MiB`
pub(super) fn bytes(bytes: u64) -> String {
    let mut size = bytes as f64;
    let mut units = ["KiB", "MiB", "GiB", "TiB"].into_iter();
    let mut unit = None;
    // Rounding must not give 1024.0 of a unit.
    while size >= 1023.95 {
        let Some(larger) = units.next() else { break };
        (size, unit) = (size / 1024.0, Some(larger));
    }
    unit.map_or_else(|| format!("{bytes} B"), |unit| format!("{size:.1} {unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_in_the_unit_that_fits() {
        let told = [0, 1023, 1024, 12_897_485, 1_048_575, 10 << 30, u64::MAX].map(bytes);
        assert_eq!(told, ["0 B", "1023 B", "1.0 KiB", "12.3 MiB", "1.0 MiB", "10.0 GiB", "16777216.0 TiB"]);
    }

    #[test]
    fn a_long_table_has_one_heading_and_later_rows_stand_under_it() {
        let mut table = Table::new(&["NAME", ">SEQ"]);
        table.row(["a-long-name".into(), "1".into()]);
        let first = table.text(80);
        table.row(["b".into(), "22".into()]);
        assert_eq!(first + &table.text(80), "NAME         SEQ\na-long-name    1\nb             22\n");
    }

    #[test]
    fn columns_stand_in_line_and_long_words_are_cut_in_the_middle() {
        let mut table = Table::new(&["NAME", ">SEQ", "STATE"]);
        table.row(["a".into(), "7".into(), "following".into()]);
        table.row(["日本".into(), "1,042".into(), "x\u{1b}".into()]);
        assert_eq!(table.text(80), "NAME    SEQ  STATE\na         7  following\n日本  1,042  x\u{fffd}\n");
        table.row(["a-very-long-name-indeed".repeat(5), "1".into(), "ok".into()]);
        let text = table.text(40);
        assert!(text.lines().all(|line| width(line) <= 40) && text.contains('…'), "{text}");
        table.row(["a".into(), "12345678901234567890".into(), "ok".into()]);
        assert!(table.text(12).lines().all(|line| width(line) <= 12), "figures too, as a last resort");
    }
}
