//! The keeper: a thread of each bounded root that does what nobody waits for. It loads the root when it is opened,
//! trims it to its bound, and from then on ticks.
//!
//! | file | what it holds |
//! |---|---|
//! | `state.rs` | `Keeper`: what the thread works with |
//! | `thread.rs`, `end.rs` | [`Keeping`]: the claim on a root and the thread that holds it, and how they end |
//! | `start.rs` | loading, the first share, the first trim |
//! | `tick.rs` | what is done ten times a second |
//! | `exchange.rs` | settling with the other members who may hold how many bytes |
//! | `follow.rs` | what other live members of the namespaces served here store and remove |
//! | `adopt.rs` | taking over what a dead member left |
//! | `compact.rs` | folding the journal into a snapshot |
//! | `again.rs`, `emptied.rs` | a root that somebody removed; directories that could not be removed |
//! | `looks.rs` | where the keeper is with its looks at both |

mod adopt;
mod again;
mod compact;
mod emptied;
mod end;
mod exchange;
mod follow;
mod looks;
mod start;
mod state;
mod thread;
mod tick;

pub(crate) use thread::Keeping;
