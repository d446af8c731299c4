//! Plain tables: columns as wide as their widest cell, numbers to the right.

/// Prints a line.
#[expect(clippy::print_stdout, reason = "the output of the command")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}

/// Prints rows under a heading row, the first column to the left and all others to the right.
pub(crate) fn table(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| {
        rows.iter()
            .filter_map(|r| r.get(c))
            .map(String::len)
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, &w))| {
            if i == 0 {
                format!("{cell:<w$}")
            } else {
                format!("{cell:>w$}")
            }
        });
        say(cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    say("");
}

/// A heading row.
pub(crate) fn heading(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|&c| c.to_owned()).collect()
}

/// The middle of `values`; zero of none.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
