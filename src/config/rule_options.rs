//! Declares the options of a routing rule, and recognises their keys, such as `route.rules.0.glob`.
//! An index has one spelling (no leading zeros).

use super::options::{OptionSpec, list, switch, text};

pub(super) const RULES: &str = "route.rules";

/// Options of a rule. `N` stands for the rule's number, from 0.
pub const RULE_OPTIONS: &[OptionSpec] = &[
    text(
        "route.rules.N.column",
        "\"\"",
        "Column to match. If empty: the column of `route.by`. NULL matches nothing.",
    ),
    text("route.rules.N.glob", "\"\"", "Pattern of the value: `*` is any text, `?` one character."),
    text(
        "route.rules.N.regex",
        "\"\"",
        "Instead of `glob`: a regular expression that must match the whole value.",
    ),
    switch("route.rules.N.drop", "false", "If true, matching rows are not delivered."),
    text(
        "route.rules.N.topic",
        "\"\"",
        "Topic, with groups of `regex`, or `${routedByValue}` for the value. If empty: the \
         topic without the rule.",
    ),
    text("route.rules.N.key", "\"\"", "Key column. If empty: the column of `route.key`."),
    list("route.rules.N.headers", "[]", "Headers, instead of `route.headers`."),
    text(
        "route.rules.N.partition",
        "\"\"",
        "Partition column. If empty: the column of `route.partition`.",
    ),
];

pub(super) fn option(key: &str) -> Option<&'static OptionSpec> {
    let (number, name) = key.strip_prefix(RULES)?.strip_prefix('.')?.split_once('.')?;
    // `00` would be a second name of rule 0.
    number.parse::<u16>().ok().filter(|parsed| parsed.to_string() == number)?;
    RULE_OPTIONS.iter().find(|option| option.name() == name)
}

pub(super) fn is_rules(key: &str) -> bool {
    key.strip_prefix(RULES).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether the key is a whole rule: a section in a file.
pub(super) fn is_rule(key: &str) -> bool {
    is_rules(key) && key.matches('.').count() == 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OptionKind;

    #[test]
    fn a_rules_keys_are_options() {
        assert_eq!(option("route.rules.0.glob").unwrap().kind, OptionKind::Text);
        assert_eq!(option("route.rules.12.drop").unwrap().kind, OptionKind::Switch);
        for wrong in ["", ".0", ".x.glob", ".00.glob", ".+1.glob", ".70000.glob", ".0.globe"] {
            assert!(option(&format!("{RULES}{wrong}")).is_none(), "{wrong}");
        }
        assert!(is_rules("route.rules.0") && is_rules("route.rules") && !is_rules("route.rule"));
    }
}
