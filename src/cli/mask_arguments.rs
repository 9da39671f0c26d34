//! Masks secrets of the command line in messages that repeat arguments.

use postrider_secrets::mask::{for_scrubbing, mask_text, scrub, secret_parts};
use postrider_service::shell::shell_word;

pub fn without_typed_secrets(text: &str, words: impl IntoIterator<Item = String>) -> String {
    let mut text = text.to_owned();
    let mut pieces = Vec::new();
    for word in words {
        pieces.extend(secret_parts("", &word));
        // A message may repeat a value without its flag.
        let value = word.split_once('=').map(|(_, value)| value);
        for part in [Some(&*word), value].into_iter().flatten() {
            let masked = mask_text(part);
            if masked != part {
                text = text.replace(part, &masked);
            }
        }
    }
    scrub(&text, &for_scrubbing(pieces))
}

pub fn typed_words() -> impl Iterator<Item = String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned())
}

/// For a shell: without some words, with others, and with secrets masked.
pub fn typed_command(
    words: impl IntoIterator<Item = String>,
    without: &[&str],
    with: &[&str],
) -> String {
    let words: Vec<String> = words.into_iter().collect();
    let more = with.iter().copied().filter(|word| !words.iter().any(|typed| typed == word));
    let kept = words.iter().map(String::as_str).filter(|word| !without.contains(word));
    let mut line = String::from("postrider");
    for word in kept.chain(more) {
        line.push(' ');
        line.push_str(&shell_word(&without_typed_secrets(word, words.iter().cloned())));
    }
    line
}

/// `None` if nothing was masked, because clap itself prints better.
pub fn clap_error_without_secrets(
    error: &clap::Error,
    words: impl IntoIterator<Item = String>,
) -> Option<String> {
    let values = error.context().flat_map(|(_, value)| match value {
        clap::error::ContextValue::String(one) => vec![one.clone()],
        clap::error::ContextValue::Strings(many) => many.clone(),
        _ => Vec::new(),
    });
    let said = error.render().to_string();
    let fit = without_typed_secrets(&said, words.into_iter().chain(values));
    (fit != said).then_some(fit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "postgres://relay:hunter22@db/shop";

    #[test]
    fn a_secret_that_was_typed_is_taken_out_wherever_it_is_repeated() {
        let words = || ["run".to_owned(), format!("--file={URL}"), "password=hunter22".to_owned()];
        for text in [
            format!("unexpected argument '--file={URL}' found"),
            format!("cannot read {URL}: no such file"),
            "unexpected argument 'password=hunter22' found".to_owned(),
            "`hunter22@db` is not a port".to_owned(),
        ] {
            let fit = without_typed_secrets(&text, words());
            assert!(!fit.contains("hunter22") && fit.contains("****"), "{fit}");
        }
        let plain = "unexpected argument '--fast' found";
        assert_eq!(without_typed_secrets(plain, words()), plain);
    }

    #[test]
    fn a_typed_command_can_be_run_again_and_has_no_secret() {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let typed = words(&["backfill", "--restart", "--execute", "--stream", "it's a"]);
        assert_eq!(
            typed_command(typed, &["--restart"], &["--execute"]),
            r"postrider backfill --execute --stream 'it'\''s a'"
        );
        let typed = words(&["repair", "--set", "kafka.sasl.password=hunter'22", URL]);
        let line = typed_command(typed, &[], &["--execute"]);
        assert!(!line.contains("hunter") && line.ends_with(" --execute"), "{line}");
    }

    #[test]
    fn clap_repeats_no_secret() {
        let command = || {
            clap::Command::new("x")
                .arg(clap::Arg::new("bind").long("bind").value_parser(["a", "b"]))
                .subcommand(clap::Command::new("run"))
        };
        for line in [
            vec!["x".to_owned(), URL.to_owned()],
            vec!["x".to_owned(), "--bind".to_owned(), URL.to_owned()],
            vec!["x".to_owned(), format!("--bind={URL}")],
            vec!["x".to_owned(), "run".to_owned(), URL.to_owned()],
            vec!["x".to_owned(), format!("--sasl.password={URL}")],
        ] {
            let error = command().try_get_matches_from(&line).unwrap_err();
            let said = clap_error_without_secrets(&error, line.clone());
            let said = said.unwrap_or_else(|| error.render().to_string());
            assert!(!said.contains("hunter22"), "{line:?}: {said}");
            let said = clap_error_without_secrets(&error, []);
            let said = said.unwrap_or_else(|| error.render().to_string());
            assert!(!said.contains("hunter22"), "{line:?}: {said}");
        }
        let error = command().try_get_matches_from(["x", "--fast"]).unwrap_err();
        assert_eq!(clap_error_without_secrets(&error, ["--fast".to_owned()]), None);
    }
}
