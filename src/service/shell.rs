//! Quotes text for commands that a person pastes into a shell.

/// Text as one word of a POSIX shell.
pub fn shell_word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,@%+".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stays_one_word() {
        let words = ["a-b_c.d/e:f=g,h@i%j+k", "", "a b", "$(id)", "it's"].map(shell_word);
        assert_eq!(words, ["a-b_c.d/e:f=g,h@i%j+k", "''", "'a b'", "'$(id)'", r"'it'\''s'"]);
    }
}
