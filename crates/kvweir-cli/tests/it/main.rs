//! Runs the built command as a user would: what goes in, what comes out, what is left behind.

#[cfg(test)]
mod admin;
#[cfg(test)]
mod admin_codes;
#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod bench;
#[cfg(test)]
mod bound;
#[cfg(test)]
mod front;
#[cfg(test)]
mod interrupt;
#[cfg(test)]
mod replay;
#[cfg(test)]
mod replay_io;
#[cfg(test)]
mod run;
#[cfg(test)]
mod stanza;
