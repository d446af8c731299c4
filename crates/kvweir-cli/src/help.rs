//! The command line as help, completions and manual pages show it.

use std::{fs, io, path::Path};

use clap::Command;

/// The command with its texts ready to be wrapped: the parser wraps at the width of the terminal, and what was broken
/// by hand before would be broken twice.
pub(crate) fn flowing(whole: Command) -> Command {
    whole.mut_subcommands(|c| {
        let Some(text) = c.get_after_long_help().map(ToString::to_string) else {
            return c;
        };
        c.after_long_help(flow(&text))
    })
}

/// Joins the lines of each paragraph that is not indented.
fn flow(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut prose = false;
    for line in text.lines() {
        let goes_on = prose && !line.is_empty() && !line.starts_with(' ');
        if !out.is_empty() {
            out.push(if goes_on { ' ' } else { '\n' });
        }
        out.push_str(line);
        prose = !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
    }
    out
}

/// The completions of a shell.
pub(crate) fn completions(mut whole: Command, shell: clap_complete::Shell) -> String {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut whole, "kvweir", &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Writes one manual page per command to `dir`; returns their names.
pub(crate) fn man(whole: Command, dir: &Path) -> io::Result<Vec<String>> {
    let mut whole = whole.disable_help_subcommand(true);
    whole.build();
    let mut pages = vec![whole.clone()];
    pages.extend(whole.get_subcommands().filter(|c| !c.is_hide_set()).cloned());
    let mut names = Vec::new();
    for page in pages {
        // "kvweir replay" is at kvweir-replay.1
        let name = page.get_display_name().unwrap_or(page.get_name()).to_owned();
        let file = format!("{name}.1");
        // the parser keeps names for the life of the program
        let kept: &'static str = Box::leak(name.clone().into_boxed_str());
        let man = clap_mangen::Man::new(page.name(kept)).manual("kvweir");
        let mut text = Vec::new();
        man.render(&mut text)?;
        fs::write(dir.join(&file), text)?;
        names.push(file);
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    #[test]
    fn paragraphs_flow_and_examples_stay() {
        let text = "One two\nthree.\n\nExit codes: 0 good,\n1 bad.\n\nExamples:\n  # What\n  kvweir x\n";
        let flown = "One two three.\n\nExit codes: 0 good, 1 bad.\n\nExamples:\n  # What\n  kvweir x";
        assert_eq!(flow(text), flown);
    }

    /// "device is / measured": a line that was broken by hand was broken again.
    #[test]
    fn no_text_is_wrapped_twice_at_any_width() {
        let mut seen = 0;
        for width in [50, 80, 100, 120] {
            let mut whole = command().term_width(width).max_term_width(width);
            whole.build();
            for c in whole.get_subcommands_mut() {
                let help = c.render_long_help().to_string();
                let lines: Vec<&str> = help.lines().collect();
                let is_prose = |l: &str| !l.is_empty() && !l.starts_with([' ', '-']) && !l.ends_with(':');
                for pair in lines.windows(2) {
                    let [one, next] = pair else { continue };
                    if !is_prose(one) || !is_prose(next) {
                        continue;
                    }
                    let word = next.split_whitespace().next().unwrap_or_default();
                    assert!(one.len() + 1 + word.len() >= width, "{width}: {one:?} / {next:?}");
                    seen += 1;
                }
            }
        }
        assert!(seen > 20, "{seen} lines were looked at");
    }

    #[test]
    fn sentences_end_once() {
        let mut whole = command();
        whole.build();
        for c in whole.get_subcommands_mut() {
            let help = c.render_long_help().to_string();
            for twice in ["?.", "..\n", ".;"] {
                assert!(!help.contains(twice), "{}: {twice}", c.get_name());
            }
        }
    }
}
