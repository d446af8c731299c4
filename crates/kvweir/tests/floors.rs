//! The order of floors of the engine's sources: the table of ARCHITECTURE.md against what its files use.

#[cfg(test)]
#[path = "../../kvweir-cli/tests/support/uses.rs"]
mod uses;

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn no_file_of_the_engine_uses_a_higher_floor_and_none_stand_in_a_circle() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        super::uses::assert_floors(here, "## Floors of the engine");
    }
}
