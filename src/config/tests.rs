//! Tests of the configuration as a whole: files with mistakes, precedence, sources, secrets,
//! documentation.

mod mistakes;
mod precedence;
mod reference;
mod streams;

use super::{FileChoice, FlagValue, Inputs, Loaded, load};
use crate::ConfigError;

#[derive(Default)]
struct Given<'a> {
    file: Option<&'a str>,
    env: &'a [(&'a str, &'a str)],
    set: &'a [&'a str],
    flags: &'a [(&'static str, &'a str)],
}

impl Given<'_> {
    /// Loads it, under the user name `tester` and no other environment.
    fn load(&self) -> Result<Loaded, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let file = match self.file {
            None => FileChoice::Absent,
            Some(text) => {
                let path = folder.path().join("postrider.toml");
                std::fs::write(&path, text).unwrap();
                FileChoice::At(path)
            }
        };
        let mut variables = vec![("PGUSER".to_owned(), "tester".to_owned())];
        variables.extend(self.env.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())));
        let flag = |&(key, value): &(&'static str, &str)| FlagValue {
            key,
            value: value.to_owned(),
            flag: "--flag",
        };
        let inputs = Inputs {
            file,
            set: self.set.iter().map(|&text| text.to_owned()).collect(),
            flags: self.flags.iter().map(flag).collect(),
            variables,
            only: None,
        };
        load(&inputs, &|_| Vec::new())
    }
}
