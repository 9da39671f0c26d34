//! Numbers for people: `1 row`, `2 rows`, `1,801`.

pub(super) fn counted(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
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
