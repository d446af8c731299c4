//! Tables for people: sections of named values, which the terminal and the report show alike, and numbers in words.

use comfy_table::{Cell, CellAlignment, Table, presets};

/// Columns within which sentences are wrapped: one long note made tables in pipes 210 columns wide.
const WIDEST: usize = 100;

/// A heading and rows; the first column names the row.
#[derive(Debug, Clone)]
pub(crate) struct Section {
    /// Heading.
    pub(crate) title: &'static str,
    /// Column heads, empty for a list of name and value.
    pub(crate) head: Vec<String>,
    /// Rows.
    pub(crate) rows: Vec<Vec<String>>,
}

impl Section {
    /// An ASCII table under its heading; where the terminal is narrower, one line per value.
    pub(crate) fn to_text(&self) -> String {
        self.to_text_within(width())
    }

    fn to_text_within(&self, width: Option<usize>) -> String {
        let text = self.table();
        match width {
            Some(width) if text.lines().any(|l| l.chars().count() > width) => self.stacked(width),
            _ => text,
        }
    }

    /// One value per line, with its row and head; what is longer than a line goes on in the next.
    fn stacked(&self, width: usize) -> String {
        let mut out = self.title.to_owned();
        let mut line = |indent: usize, name: &str, value: &str| {
            let name = name.trim();
            let text = match (name.is_empty(), value.is_empty()) {
                (false, false) => format!("{name}: {value}"),
                _ => format!("{name}{value}"),
            };
            let mut used = usize::MAX;
            for word in text.split_whitespace() {
                if used.saturating_add(1 + word.chars().count()) > width {
                    let more = if used == usize::MAX { 0 } else { 2 };
                    out.push('\n');
                    out.extend(std::iter::repeat_n(' ', indent + more));
                    used = indent + more;
                } else {
                    out.push(' ');
                    used += 1;
                }
                out.push_str(word);
                used += word.chars().count();
            }
        };
        for row in &self.rows {
            let (name, values) = row.split_first().map_or(("", &[][..]), |(n, v)| (n.as_str(), v));
            let deep = 1 + (name.len() - name.trim_start().len());
            if self.head.is_empty() {
                line(deep, name, &values.join(" "));
                continue;
            }
            line(deep, name, "");
            for (head, value) in self
                .head
                .iter()
                .skip(1)
                .zip(values)
                .filter(|(_, v)| !v.is_empty())
            {
                line(deep + 2, head, value);
            }
        }
        out
    }

    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        if !self.head.is_empty() {
            table.set_header(&self.head);
        }
        let names = self.rows.iter().filter_map(|r| r.first());
        // a space on either side of both columns
        let used = names.map(|n| n.chars().count()).max().unwrap_or(0) + 4;
        for row in &self.rows {
            match row.as_slice() {
                [name, value] if self.head.is_empty() && used + value.chars().count() > WIDEST => {
                    let lines = wrapped(value, WIDEST.saturating_sub(used));
                    let value = Cell::new(lines.join("\n")).set_alignment(CellAlignment::Left);
                    table.add_row([Cell::new(name), value]);
                }
                _ => _ = table.add_row(row),
            }
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let lines: Vec<String> = table.lines().map(|l| l.trim_end().to_owned()).collect();
        format!("{}\n{}", self.title, lines.join("\n"))
    }
}

/// The words of `text` in lines of at most so many columns; a longer word has a line of its own.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Columns of whoever reads: `COLUMNS` where it is set, else those of the terminal, if it is one.
fn width() -> Option<usize> {
    let set = std::env::var("COLUMNS").ok().and_then(|n| n.parse().ok());
    set.filter(|n| *n > 0)
        .or_else(|| Table::new().width().map(usize::from))
}

/// Digits in groups of three.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Bytes with a binary unit.
pub(crate) fn bytes(n: u64) -> String {
    bytesize::ByteSize::b(n).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_note_does_not_widen_a_table_that_nobody_limits() {
        let note = "18,491 of 19,889 blocks were not stored, most for `pressure`: stores took over 0.01 s per MiB \
                    (high_water_s); try `kvweir bench DIR` on the device, a faster one, or a higher --high-water-s";
        let list = Section {
            title: "run",
            head: Vec::new(),
            rows: vec![
                vec!["events match directory".into(), "yes".into()],
                vec!["note".into(), note.into()],
            ],
        };
        let text = list.to_text_within(None);
        assert!(text.lines().all(|l| l.chars().count() <= WIDEST), "{text}");
        let words: Vec<_> = text.split_whitespace().collect();
        assert!(
            words.join(" ").ends_with(note),
            "every word, in its order: {text}"
        );
        let after: Vec<_> = text.lines().skip_while(|l| !l.contains("18,491")).collect();
        let at = after[0].find("18,491").unwrap();
        assert!(after.len() > 2, "{text}");
        for line in &after[1..] {
            assert!(
                line[..at].trim().is_empty() && !line[at..].starts_with(' '),
                "left, below its beginning: {text}"
            );
        }
    }

    #[test]
    fn a_narrow_terminal_gets_one_line_per_value_and_a_wide_one_the_table() {
        let list = Section {
            title: "run",
            head: Vec::new(),
            rows: vec![
                vec!["requests".into(), "600".into()],
                vec!["  from the primary tier".into(), "0.6532 (39,192 blocks)".into()],
            ],
        };
        assert_eq!(list.to_text_within(Some(200)), list.table());
        assert_eq!(
            list.to_text_within(Some(40)),
            "run\n requests: 600\n   from the primary tier: 0.6532 (39,192\n     blocks)"
        );
        let grid = Section {
            title: "latency (us)",
            head: ["", "p50", "p99", "max"].map(str::to_owned).to_vec(),
            rows: vec![["lookup", "0.1", "", "12345.6"].map(str::to_owned).to_vec()],
        };
        assert_eq!(
            grid.to_text_within(Some(20)),
            "latency (us)\n lookup\n   p50: 0.1\n   max: 12345.6"
        );
        for width in 1..60 {
            let text = list.to_text_within(Some(width));
            assert!(
                text.contains("600") && text.contains("blocks)"),
                "{width}: {text}"
            );
        }
    }
}
