//! The order of floors of the command's sources: the table of ARCHITECTURE.md against what its files use.

#[cfg(test)]
#[path = "support/uses.rs"]
mod uses;

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::uses::{Uses, assert_floors, floors};

    #[test]
    fn no_file_uses_a_higher_floor_and_none_stand_in_a_circle() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_floors(here, "## Floors of the command");
    }

    fn of(files: &[(&str, &str)]) -> Uses {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Uses::read(dir.path())
    }

    fn names(list: &[&str]) -> BTreeSet<String> {
        list.iter().map(|s| (*s).to_owned()).collect()
    }

    /// A check that finds nothing shows nothing.
    #[test]
    fn circles_are_found_however_a_name_is_brought_in() {
        for back in [
            "use crate::a::A;",
            "use super::a;",
            "use super::{a::{self, A}, x};",
            "fn f() { crate::a::g(); }",
            "fn f() -> super::a::A { todo!() }",
            "use crate as us; fn f() { us::a::g(); }",
            "mod inner { use super::super::a::A; }",
            "use crate::A;",
            "use crate::*; fn f() { use super::a::*; }",
            "#[cfg(feature = \"x\")] use crate::a::A;",
        ] {
            let uses = of(&[
                ("lib.rs", "mod a; mod b; pub use a::A;"),
                ("a.rs", "use crate::b::B; pub struct A;"),
                ("b.rs", back),
            ]);
            assert_eq!(uses.circles(), [names(&["a.rs", "b.rs"])], "{back}");
            let told = uses.new_circles(&[]).join("\n");
            assert!(
                told.contains("a.rs uses b.rs: crate::b::B") && told.contains("b.rs uses a.rs: "),
                "{told}"
            );
            assert_eq!(uses.new_circles(&[&["a.rs", "b.rs", "c.rs"]]), [""; 0]);
        }
    }

    #[test]
    fn tests_comments_strings_and_what_is_passed_on_are_no_uses() {
        let uses = of(&[
            ("main.rs", "mod a;\nfn main() { a::run() }"),
            (
                "a/mod.rs",
                "mod b; mod c; #[cfg(test)] mod tests;\npub(crate) use b::{B, Other as O};\n// crate::a::c\n\
                 const S: &str = r#\"crate::a::c::C\"#; const C: char = '\"'; /* c::C */ fn f<'a>(x: &'a str) {}\n\
                 #[cfg(test)] mod more { use super::c::C; }",
            ),
            ("a/b.rs", "use super::c::C; pub struct B; pub struct Other;"),
            (
                "a/c.rs",
                "pub struct C; #[cfg(test)] mod t { use super::super::b; #[test] fn f() {} }",
            ),
            ("a/tests.rs", "use super::*; use crate::a::b::B;"),
            ("d.rs", "use crate::a::{B, O};"),
        ]);
        assert_eq!(uses.circles(), []);
        let floors = floors(
            "# X\n\n## Floors\n| floor | room |\n|---|---|\n| 3 | `main.rs`, `d.rs` | x |\n| 2 | `a/` | y |\n\
             | 1 | `a/b.rs` | |\n| 0 | `a/c.rs`, `gone.rs` | |\n\n## Next\n| 9 | `a/` |\n",
            "## Floors",
        );
        assert_eq!(floors.len(), 4);
        assert_eq!(uses.upward(&floors), [""; 0]);
        assert_eq!(uses.empty_rooms(&floors), ["gone.rs"]);
    }

    #[test]
    fn what_is_passed_on_and_said_by_the_file_itself_is_a_use_of_it() {
        let uses = of(&[
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod b; pub use b::B; pub struct A(B);"),
            ("a/b.rs", "pub struct B; fn f(_: &super::A) {}"),
        ]);
        assert_eq!(uses.circles(), [names(&["a/mod.rs", "a/b.rs"])]);
    }

    #[test]
    fn a_use_of_a_higher_floor_is_told_with_its_path() {
        let uses = of(&[
            ("main.rs", "mod high; mod low; mod lost;"),
            ("high.rs", "pub fn f() {}"),
            ("low.rs", "fn g() { crate::high::f() }"),
            ("lost.rs", ""),
        ]);
        let floors = vec![
            (1, vec!["main.rs".to_owned(), "high.rs".to_owned()]),
            (0, vec!["low.rs".to_owned()]),
        ];
        assert_eq!(
            uses.upward(&floors),
            [
                "lost.rs has no floor",
                "low.rs (floor 0) uses high.rs (floor 1): crate::high::f"
            ]
        );
    }
}
