//! Measures the distance of two names, to suggest the intended one.

/// Letters added, left out, changed or swapped with the next between two names, if at most `most`.
pub fn distance(name: &str, other: &str, most: usize) -> Option<usize> {
    // Distance is at least the difference of lengths, so long input costs little.
    let longer = name.chars().count().abs_diff(other.chars().count());
    let apart = || strsim::damerau_levenshtein(name, other);
    (longer <= most).then(apart).filter(|distance| *distance <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_so_many_letters_apart_or_too_many() {
        for (name, other, most, apart) in [
            ("slot", "slot", 0, Some(0)),
            ("slto", "slot", 1, Some(1)),
            ("slots", "slot", 1, Some(1)),
            ("slots", "slot", 0, None),
            ("größe", "grösse", 2, Some(2)),
            ("topic", "slot", 3, None),
        ] {
            assert_eq!(distance(name, other, most), apart, "{name} {other}");
        }
    }

    #[test]
    fn names_of_very_different_length_are_not_measured() {
        // Measuring these would take an hour.
        let (long, longer) = ("x".repeat(1_000_000), "x".repeat(1_000_004));
        assert_eq!(distance(&long, &longer, 3), None);
    }
}
