//! A number and its noun, for people: `1 row`, `2 rows`. Small, because every command needs it and nothing else does.

/// The number with the noun in the singular or, with an `s`, in the plural.
pub(super) fn counted(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_zero_is_not() {
        let counts = [0, 1, 2].map(|number| counted(number, "dead letter"));
        assert_eq!(counts, ["0 dead letters", "1 dead letter", "2 dead letters"]);
    }
}
