//! The order of floors of the engine's sources: the table of ARCHITECTURE.md against what its files use.

#[cfg(test)]
#[path = "../../kvweir-cli/tests/support/uses.rs"]
mod uses;

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::uses::{Uses, floors};

    #[test]
    fn no_file_of_the_engine_uses_a_higher_floor_and_none_stand_in_a_circle() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let uses = Uses::read(&here.join("src"));
        let page = fs::read_to_string(here.join("../../ARCHITECTURE.md")).unwrap();
        let floors = floors(&page, "## Floors of the engine");
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
}
