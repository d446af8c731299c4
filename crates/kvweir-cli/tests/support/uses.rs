//! Which file of a crate uses which: read from its sources, for tests that hold the order of floors.
//!
//! A file uses another when a `use` or a path written in code outside `#[cfg(test)]` leads to something that the other
//! defines. Names that a file only passes on (`pub use`) are followed to the file that defines them, and passing on is
//! no use. What macros make is not seen.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    path::Path,
};

/// File, file that it uses, and by which path.
type Edges = BTreeMap<String, BTreeMap<String, String>>;
/// A module: the names that lead to it from the crate's root.
type Module = Vec<String>;

/// The files of a crate and their uses. Names are relative to `src`.
#[derive(Debug)]
pub(crate) struct Uses {
    edges: Edges,
}

/// Rooms from the top floor down: its number, and files (`cli.rs`) or folders (`commands/`).
pub(crate) type Floors = Vec<(u32, Vec<String>)>;

/// Asserts for the crate in directory `here` that no file uses a higher floor, that none stand in a circle, and that
/// each room of the table below `heading` in ARCHITECTURE.md has files.
pub(crate) fn assert_floors(here: &Path, heading: &str) {
    let uses = Uses::read(&here.join("src"));
    let page = fs::read_to_string(here.join("../../ARCHITECTURE.md")).unwrap();
    let floors = floors(&page, heading);
    assert!(floors.len() > 3, "the table was not found");
    let mut wrong = uses.upward(&floors);
    wrong.extend(uses.new_circles(&[]));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(
        uses.empty_rooms(&floors),
        [""; 0],
        "rooms of the table without a file"
    );
}

/// The table of floors below the line `heading` of a page: number in the first column, names in backticks in the
/// second.
pub(crate) fn floors(page: &str, heading: &str) -> Floors {
    let section = page.lines().skip_while(|l| *l != heading).skip(1);
    let rows = section
        .take_while(|l| !l.starts_with('#'))
        .filter(|l| l.starts_with('|'));
    rows.filter_map(|row| {
        let mut cells = row.trim_matches('|').split('|');
        let floor = cells.next()?.trim().parse().ok()?;
        let names = cells.next()?.split('`').skip(1).step_by(2);
        Some((floor, names.map(str::to_owned).collect()))
    })
    .collect()
}

impl Uses {
    /// Reads all files below `src`.
    pub(crate) fn read(src: &Path) -> Self {
        let mut texts = BTreeMap::new();
        collect(src, src, &mut texts);
        let mut files: BTreeMap<Module, String> = BTreeMap::new();
        let mut parsed: BTreeMap<Module, Parsed> = BTreeMap::new();
        for (name, text) in &texts {
            files.insert(module_of(name), name.clone());
            parsed.insert(module_of(name), Parsed::of(text));
        }
        // modules that are declared for tests only, and all below them
        let tests: Vec<Module> = parsed
            .iter()
            .flat_map(|(m, p)| {
                p.tests
                    .iter()
                    .map(|t| [m.as_slice(), std::slice::from_ref(t)].concat())
            })
            .collect();
        files.retain(|m, _| !tests.iter().any(|t| m.starts_with(t)));
        let known = Known {
            files: &files,
            parsed: &parsed,
        };
        let mut edges = Edges::new();
        for (module, name) in &files {
            let mine = edges.entry(name.clone()).or_default();
            let Some(p) = parsed.get(module) else { continue };
            for path in p.used() {
                for target in known.targets(module, &path) {
                    if target != *name {
                        mine.entry(target).or_insert_with(|| path.names.join("::"));
                    }
                }
            }
        }
        Self { edges }
    }

    /// Groups of files that use each other in a circle.
    pub(crate) fn circles(&self) -> Vec<BTreeSet<String>> {
        let reach: BTreeMap<&str, BTreeSet<&str>> =
            self.edges.keys().map(|f| (f.as_str(), self.reached(f))).collect();
        let mut out: Vec<BTreeSet<String>> = Vec::new();
        for (file, there) in &reach {
            if !there.contains(file) || out.iter().any(|c| c.contains(*file)) {
                continue;
            }
            let back = |other: &&&str| reach.get(**other).is_some_and(|r| r.contains(file));
            out.push(there.iter().filter(back).map(|f| (*f).to_owned()).collect());
        }
        out
    }

    /// Circles that are in none of `allowed`, each with a shortest way round.
    pub(crate) fn new_circles(&self, allowed: &[&[&str]]) -> Vec<String> {
        let is_allowed =
            |c: &BTreeSet<String>| allowed.iter().any(|a| c.iter().all(|f| a.contains(&f.as_str())));
        let circles = self.circles();
        let new = circles.iter().filter(|c| !is_allowed(c));
        new.map(|c| {
            let ways = c.iter().filter_map(|f| self.way_round(f));
            let shortest = ways.min_by_key(Vec::len).unwrap_or_default();
            let steps = shortest.windows(2).map(|step| match step {
                [from, to] => format!("  {from} uses {to}: {}", self.edges[from][to]),
                _ => String::new(),
            });
            let steps: Vec<String> = steps.collect();
            format!("{} files in a circle, such as\n{}", c.len(), steps.join("\n"))
        })
        .collect()
    }

    /// Files that use a file of a higher floor, and files that have no floor.
    pub(crate) fn upward(&self, floors: &Floors) -> Vec<String> {
        let floor = |file: &str| {
            let rooms = floors
                .iter()
                .flat_map(|(n, rooms)| rooms.iter().map(move |r| (n, r)));
            let mine =
                rooms.filter(|(_, r)| r.as_str() == file || r.ends_with('/') && file.starts_with(r.as_str()));
            mine.max_by_key(|(_, r)| r.len()).map(|(n, _)| *n)
        };
        let mut out = Vec::new();
        for (file, used) in &self.edges {
            let Some(mine) = floor(file) else {
                out.push(format!("{file} has no floor"));
                continue;
            };
            for (other, path) in used {
                if let Some(theirs) = floor(other).filter(|&n| n > mine) {
                    out.push(format!(
                        "{file} (floor {mine}) uses {other} (floor {theirs}): {path}"
                    ));
                }
            }
        }
        out
    }

    /// Rooms of `floors` that no file is in.
    pub(crate) fn empty_rooms(&self, floors: &Floors) -> Vec<String> {
        let is_there = |room: &str| {
            self.edges
                .keys()
                .any(|f| f == room || room.ends_with('/') && f.starts_with(room))
        };
        let rooms = floors.iter().flat_map(|(_, rooms)| rooms);
        rooms.filter(|r| !is_there(r)).cloned().collect()
    }

    /// What `file` uses, at first or second hand and so on.
    fn reached(&self, file: &str) -> BTreeSet<&str> {
        let mut seen = BTreeSet::new();
        let mut next = VecDeque::from([file]);
        while let Some(at) = next.pop_front() {
            for other in self.edges.get(at).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(other.as_str()) {
                    next.push_back(other);
                }
            }
        }
        seen
    }

    /// A shortest way from `file` back to it.
    fn way_round(&self, file: &str) -> Option<Vec<String>> {
        let mut seen = BTreeSet::new();
        let mut ways = VecDeque::from([vec![file.to_owned()]]);
        while let Some(way) = ways.pop_front() {
            for other in self.edges.get(way.last()?)?.keys() {
                let mut longer = way.clone();
                longer.push(other.clone());
                if other == file {
                    return Some(longer);
                }
                if seen.insert(other) {
                    ways.push_back(longer);
                }
            }
        }
        None
    }
}

fn collect(src: &Path, dir: &Path, out: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(src, &path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let name = path.strip_prefix(src).unwrap().to_string_lossy().into_owned();
            out.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
}

/// `a/b.rs` and `a/b/mod.rs` are `a::b`.
fn module_of(file: &str) -> Module {
    let mut names: Module = file
        .trim_end_matches(".rs")
        .split('/')
        .map(str::to_owned)
        .collect();
    let whole = names.len() == 1;
    if names
        .last()
        .is_some_and(|n| n == "mod" || whole && (n == "lib" || n == "main"))
    {
        names.pop();
    }
    names
}

/// A path as it is written, and the modules within the file in which it stands.
#[derive(Debug, Clone)]
struct Written {
    inside: Module,
    names: Vec<String>,
}

/// What a file says outside its tests.
#[derive(Debug, Default)]
struct Parsed {
    /// Names brought in, and from where; under which a name is known here.
    imports: Vec<(String, Written)>,
    /// Of these, those that are passed on.
    passed: Vec<(String, Written)>,
    /// Paths in code.
    paths: Vec<Written>,
    /// Every word in code.
    words: BTreeSet<String>,
    /// Modules that are declared for tests only.
    tests: Vec<String>,
}

impl Parsed {
    fn of(text: &str) -> Self {
        let mut p = Self::default();
        let tokens = tokens(text);
        p.read(&tokens);
        p
    }

    /// All that the file uses: what it brings in, what it passes on and says itself, and paths.
    fn used(&self) -> Vec<Written> {
        let mut out: Vec<Written> = self.imports.iter().map(|(_, w)| w.clone()).collect();
        let said = self.passed.iter().filter(|(name, _)| self.words.contains(name));
        out.extend(said.map(|(_, w)| w.clone()));
        for path in &self.paths {
            let first = path.names.first();
            // what a name in front was brought in as
            let brought = self
                .imports
                .iter()
                .chain(&self.passed)
                .find(|(name, _)| Some(name) == first);
            out.push(match brought {
                Some((_, from)) => Written {
                    inside: from.inside.clone(),
                    names: [&from.names, path.names.get(1..).unwrap_or_default()].concat(),
                },
                None => path.clone(),
            });
        }
        out
    }

    fn read(&mut self, tokens: &[String]) {
        let at = |i: usize| tokens.get(i).map_or("", String::as_str);
        // modules that are open, with the depth of their braces
        let mut open: Vec<(String, usize)> = Vec::new();
        let (mut i, mut depth) = (0, 0_usize);
        let mut passes = false;
        while i < tokens.len() {
            let inside = || open.iter().map(|(name, _)| name.clone()).collect::<Module>();
            match at(i) {
                "#" if at(i + 1) == "[" => {
                    let end = closing(tokens, i + 1);
                    let words: Vec<&str> = (i + 2..end).map(at).collect();
                    if is_for_tests(&words) {
                        i = self.skip_item(tokens, end + 1);
                        continue;
                    }
                }
                "pub" => passes = true,
                "(" if passes && at(i - 1) == "pub" => {
                    i = closing(tokens, i) + 1;
                    continue;
                }
                "use" => {
                    let mut found = Vec::new();
                    i = tree(tokens, i + 1, &[], &mut found);
                    let list = if passes {
                        &mut self.passed
                    } else {
                        &mut self.imports
                    };
                    for (name, names) in found {
                        let inside = inside();
                        list.push((name, Written { inside, names }));
                    }
                    passes = false;
                }
                "mod" if at(i + 2) == "{" => open.push((at(i + 1).to_owned(), depth)),
                "{" => depth += 1,
                "}" => {
                    depth = depth.saturating_sub(1);
                    open.retain(|(_, d)| *d < depth);
                }
                word if is_word(word) => {
                    passes = false;
                    self.words.insert(word.to_owned());
                    let mut names = vec![word.to_owned()];
                    while at(i + 1) == "::" && is_word(at(i + 2)) {
                        names.push(at(i + 2).to_owned());
                        i += 2;
                    }
                    // `::name` and `<T>::name` are nobody's of ours
                    if names.len() > 1 {
                        self.paths.push(Written {
                            inside: inside(),
                            names,
                        });
                    }
                }
                _ => passes = false,
            }
            i += 1;
        }
    }

    /// The place behind the item that begins at `i`, of which nothing is kept but that it is a module for tests.
    fn skip_item(&mut self, tokens: &[String], mut i: usize) -> usize {
        let at = |i: usize| tokens.get(i).map_or("", String::as_str);
        let mut is_item = false;
        while i < tokens.len() {
            match at(i) {
                "#" if at(i + 1) == "[" => i = closing(tokens, i + 1),
                "(" | "[" => i = closing(tokens, i),
                "mod" if at(i + 2) == ";" => self.tests.push(at(i + 1).to_owned()),
                "{" => return closing(tokens, i) + 1,
                ";" => return i + 1,
                // a field, a variant, a value
                "," if !is_item => return i + 1,
                "fn" | "impl" | "struct" | "enum" | "trait" | "type" => is_item = true,
                _ => {}
            }
            i += 1;
        }
        i
    }
}

/// Whether an attribute leaves its item to tests alone.
fn is_for_tests(words: &[&str]) -> bool {
    matches!(
        words,
        ["cfg", "(", "test", ..] | ["cfg", "(", "all", "(", "test", ..] | ["test"]
    )
}

/// The place of the bracket that closes the one at `i`.
fn closing(tokens: &[String], mut i: usize) -> usize {
    let mut depth = 0_usize;
    while let Some(token) = tokens.get(i) {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth -= 1;
                if depth == 0 {
                    return i;
                }
            }
            _ => {}
        }
        i += 1;
    }
    i
}

/// Reads a tree of `use` from `i` on, with what stands before it; returns the place of what ends it.
fn tree(tokens: &[String], mut i: usize, before: &[String], out: &mut Vec<(String, Vec<String>)>) -> usize {
    let at = |i: usize| tokens.get(i).map_or("", String::as_str);
    let mut names = before.to_vec();
    loop {
        match at(i) {
            "::" => i += 1,
            "{" => {
                i += 1;
                while at(i) != "}" && i < tokens.len() {
                    i = tree(tokens, i, &names, out);
                    if at(i) == "," {
                        i += 1;
                    }
                }
                return i + 1;
            }
            "*" => {
                out.push(("*".to_owned(), names));
                return i + 1;
            }
            word if is_word(word) && word != "as" => {
                if word != "self" || names.is_empty() {
                    names.push(word.to_owned());
                }
                i += 1;
            }
            "as" => {
                out.push((at(i + 1).to_owned(), names));
                return i + 2;
            }
            _ => {
                out.push((names.last().cloned().unwrap_or_default(), names));
                return i;
            }
        }
    }
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Words, `::` and single other characters of a source, without comments, strings and lifetimes.
fn tokens(text: &str) -> Vec<String> {
    let s: Vec<char> = text.chars().collect();
    let at = |i: usize| s.get(i).copied().unwrap_or('\0');
    let mut out: Vec<String> = Vec::new();
    let mut i = 0;
    while i < s.len() {
        match at(i) {
            '/' if at(i + 1) == '/' => {
                while i < s.len() && at(i) != '\n' {
                    i += 1;
                }
            }
            '/' if at(i + 1) == '*' => {
                let mut depth = 0;
                while i < s.len() {
                    match (at(i), at(i + 1)) {
                        ('/', '*') => depth += 1,
                        ('*', '/') => depth -= 1,
                        _ => {
                            i += 1;
                            continue;
                        }
                    }
                    i += 2;
                    if depth == 0 {
                        break;
                    }
                }
            }
            '"' => i = behind_string(&s, i),
            '\'' => {
                // a character, or a lifetime
                i += match (at(i + 1), at(i + 2)) {
                    ('\\', _) => s.iter().skip(i + 3).take_while(|c| **c != '\'').count() + 4,
                    (_, '\'') => 3,
                    _ => {
                        1 + s
                            .iter()
                            .skip(i + 1)
                            .take_while(|c| c.is_alphanumeric() || **c == '_')
                            .count()
                    }
                };
            }
            c if c.is_alphanumeric() || c == '_' => {
                let from = i;
                while at(i).is_alphanumeric() || at(i) == '_' {
                    i += 1;
                }
                let word: String = s.iter().skip(from).take(i - from).collect();
                let hashes = s.iter().skip(i).take_while(|c| **c == '#').count();
                match word.as_str() {
                    "r" | "br" | "cr" if at(i + hashes) == '"' => i = behind_raw(&s, i + hashes, hashes),
                    "b" | "c" if at(i) == '"' => i = behind_string(&s, i),
                    _ => out.push(word),
                }
            }
            ':' if at(i + 1) == ':' => {
                out.push("::".to_owned());
                i += 2;
            }
            c => {
                if !c.is_whitespace() {
                    out.push(c.to_string());
                }
                i += 1;
            }
        }
    }
    out
}

fn behind_string(s: &[char], from: usize) -> usize {
    let mut i = from + 1;
    while let Some(c) = s.get(i) {
        match c {
            '\\' => i += 1,
            '"' => return i + 1,
            _ => {}
        }
        i += 1;
    }
    i
}

/// Behind a raw string whose first quote is at `from`, with so many hashes.
fn behind_raw(s: &[char], from: usize, hashes: usize) -> usize {
    let mut i = from + 1;
    while i < s.len() {
        let after = s.iter().skip(i + 1).take_while(|c| **c == '#').count();
        if s.get(i) == Some(&'"') && after >= hashes {
            return i + 1 + hashes;
        }
        i += 1;
    }
    i
}

/// Where paths lead.
struct Known<'a> {
    files: &'a BTreeMap<Module, String>,
    parsed: &'a BTreeMap<Module, Parsed>,
}

impl Known<'_> {
    /// The files that define what `path`, written in `module`, names.
    fn targets(&self, module: &Module, path: &Written) -> BTreeSet<String> {
        let mut out = BTreeSet::new();
        if let Some(names) = self.absolute(module, path) {
            self.follow(&names, 0, &mut out);
        }
        out
    }

    /// The path from the crate's root; `None` for other crates' and for what is in the file itself.
    fn absolute(&self, module: &Module, path: &Written) -> Option<Vec<String>> {
        let here = [module.as_slice(), path.inside.as_slice()].concat();
        let mut names = path.names.as_slice();
        let mut base = match names.first()?.as_str() {
            "crate" => Vec::new(),
            "self" => here,
            "super" => {
                let mut base = here;
                base.pop()?;
                base
            }
            first => {
                let below = [here.as_slice(), &[first.to_owned()]].concat();
                self.files.get(&below)?;
                return Some([here.as_slice(), names].concat());
            }
        };
        names = names.get(1..)?;
        while let Some(("super", rest)) = names.split_first().map(|(n, r)| (n.as_str(), r)) {
            base.pop()?;
            names = rest;
        }
        Some([base.as_slice(), names].concat())
    }

    /// The file of the longest module that the path begins with, or where that only passes the next name on, of what it
    /// passes on.
    fn follow(&self, names: &[String], steps: usize, out: &mut BTreeSet<String>) {
        let is_module = |n: &usize| names.get(..*n).is_some_and(|m| self.files.contains_key(m));
        let Some(n) = (0..=names.len()).rev().find(is_module) else {
            return;
        };
        let module: Module = names.get(..n).unwrap_or_default().to_vec();
        let rest = names.get(n..).unwrap_or_default();
        // of a chain that never ends the last file is as good as any
        if let (Some(name), Some(parsed)) = (rest.first(), self.parsed.get(&module).filter(|_| steps < 8)) {
            let passed = parsed.passed.iter().find(|(known, _)| known == name);
            let from = passed.and_then(|(_, from)| self.absolute(&module, from));
            if let Some(from) = from {
                let further = [from.as_slice(), rest.get(1..).unwrap_or_default()].concat();
                return self.follow(&further, steps + 1, out);
            }
        }
        out.extend(self.files.get(&module).cloned());
    }
}
