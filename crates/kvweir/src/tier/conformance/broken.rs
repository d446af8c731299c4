//! How a check ends that fails.

/// Stops a check: the tier broke this line of the contract.
#[expect(clippy::panic, reason = "a check that fails must stop the test that runs it")]
pub(super) fn broken(line: &str, how: &str) -> ! {
    panic!("contract broken: {line}: {how}")
}
