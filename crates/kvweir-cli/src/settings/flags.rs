//! The settings as flags. Values are taken as text, so that a flag and a line of the file are judged by the same
//! code and told in the same words.

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use super::{
    origin::{Origin, Raw, Shape},
    raw::RawSettings,
    table::{Kind, SETTINGS, Setting},
};

/// The flags that were given.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flags(pub(crate) RawSettings);

fn arg(setting: &'static Setting) -> Arg {
    let end = setting.default.map_or_else(
        || format!("[unset: {}]", setting.unset),
        |d| format!("[default: {d}]"),
    );
    let help = match setting.kind {
        Kind::Word => format!("{}: {} {end}", setting.help, setting.allowed),
        _ => format!("{} {end}", setting.help),
    };
    let stop = if setting.help.ends_with('?') { "" } else { "." };
    let long = format!("{}{stop}\n{end}\nAllowed: {}", setting.help, setting.allowed);
    let arg = Arg::new(setting.key)
        .help(help)
        .long_help(long)
        .help_heading(setting.heading);
    if setting.key == "trace" {
        return arg.value_name("TRACE").help_heading(None::<&str>);
    }
    let arg = arg.long(setting.flag);
    let arg = setting
        .aliases
        .iter()
        .fold(arg, |a, name| a.visible_alias(kebab(name)));
    let name = match setting.kind {
        Kind::Size => "SIZE",
        Kind::Count => "N",
        Kind::Real => "X",
        Kind::Switch => {
            return arg
                .value_name("BOOL")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true");
        }
        Kind::Path => return arg.value_name("PATH"),
        Kind::Word => "WORD",
        Kind::Counts => "N,...",
    };
    arg.value_name(name).allow_hyphen_values(true)
}

/// clap keeps names for the life of the program, so the few aliases are leaked once.
fn kebab(name: &str) -> &'static str {
    Box::leak(name.replace('_', "-").into_boxed_str())
}

impl Args for Flags {
    fn augment_args(cmd: Command) -> Command {
        SETTINGS.iter().fold(cmd, |cmd, setting| cmd.arg(arg(setting)))
    }

    fn augment_args_for_update(cmd: Command) -> Command {
        Self::augment_args(cmd)
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in SETTINGS {
            if let Some(text) = matches.get_one::<String>(setting.key) {
                let origin = if setting.key == "trace" {
                    Origin::Argument
                } else {
                    Origin::Flag(setting.flag)
                };
                self.0.insert(
                    setting.key,
                    Raw {
                        text: text.clone(),
                        shape: Shape::Any,
                        origin,
                    },
                );
            }
        }
        Ok(())
    }
}
