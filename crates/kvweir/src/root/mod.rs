//! A bounded directory of counted files.

pub(crate) mod accounts;
pub(crate) mod around;
pub(crate) mod dead;
pub(crate) mod dirs;
pub(crate) mod journal;
pub(crate) mod leaves;
pub(crate) mod ledger;
pub(crate) mod member;
pub(crate) mod names;
pub(crate) mod ownership;
pub(crate) mod trailer;
pub(crate) mod visitor;
pub(crate) mod walk;
