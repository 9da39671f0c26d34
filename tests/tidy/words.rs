//! Words that only this house ever spoke: whoever searches for the thing would not find them.
//!
//! Input: texts and sources. Output: a [`Finding`] for each line that has one. The field's words for them
//! are in CONTRIBUTING.md.

use std::sync::LazyLock;

use regex::Regex;

use super::source::Finding;
use super::tree::Text;

static WORDS: LazyLock<Regex> = LazyLock::new(|| {
    let words = "gulps?|naps?|sips?|bites?|meals?|gaits?|foretells?|foretold|acquaintances?|forbearance|\
                 lookouts?|detours?|burials?|errands?|couriers?|parcels?|dampers?|vigils?|farewells?|\
                 mend|mends|mended|mending|epitaphs?|offices?|pulses?|breaths?|reminders?|truths?|obstacles?|\
                 whims?|dawdl(?:e|es|ed|ing)|unrest|wishes|shel(?:f|ves)|seats?|doors?|dice|doomed|in earnest";
    Regex::new(&format!(r"(?i)\b({words})\b")).expect("a pattern")
});

/// Of sources and of what users read, alerts among it.
pub fn of_the_house(text: &Text) -> Vec<Finding> {
    let is_read = ["README.md", "docs/", "docker/", "src/"];
    if !is_read.iter().any(|path| text.path.starts_with(path)) {
        return Vec::new();
    }
    let lines = text.text.lines().enumerate();
    lines
        .filter_map(|(index, line)| Some((index, WORDS.find(line)?.as_str())))
        .map(|(index, word)| {
            text.finding(index + 1, format!("`{word}`: say it in the field's words"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_house_are_reported_where_users_and_engineers_read() {
        let found = |path: &str, text: &str| {
            of_the_house(&Text { path: path.to_owned(), text: text.to_owned() }).len()
        };
        assert_eq!(found("src/x.rs", "//! Reads in Gulps.\n"), 1);
        assert_eq!(found("docs/x.md", "mend it\nmends it\n"), 2);
        assert_eq!(found("src/x.rs", "// in earnest, and doomed\n"), 1);
        assert_eq!(found("docs/x.md", "amended by a snapshot\n"), 0);
        assert_eq!(found("docker/prometheus/x.yaml", "action: 'mend the cause'\n"), 1);
        assert_eq!(found("tests/x.rs", "a gulp\n"), 0);
    }
}
