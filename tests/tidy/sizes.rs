//! How big things may be: files, functions, the thin mains. Clippy counts parameters.
//!
//! Input: a [`Source`]. Output: a [`Finding`] for each thing that outgrew its bound.

use super::source::{Finding, Source};

/// Lines of a file with its tests. A longer file holds two concepts.
const FILE_LINES: usize = 1000;
/// Lines of a function, all of them, where clippy leaves out comments: what one screen shows.
const FUNCTION_LINES: usize = 70;
/// Lines of `src/main.rs`: parse, set up logs, dispatch, exit code.
const MAIN_LINES: usize = 60;
/// Lines of a binary's file.
const BIN_LINES: usize = 80;

pub fn files(source: &Source) -> Vec<Finding> {
    let bound = match source.path.as_str() {
        "src/main.rs" => MAIN_LINES,
        path if path.starts_with("src/bin/") => BIN_LINES,
        _ => FILE_LINES,
    };
    let lines = source.text.lines().count();
    let what =
        || source.finding(lines, format!("{lines} lines; at most {bound}: split it by idea"));
    (lines > bound).then(what).into_iter().collect()
}

pub fn functions(source: &Source) -> Vec<Finding> {
    let lines = |first: usize, last: usize| last + 1 - first;
    let functions = source.functions.iter();
    let long = functions.filter(|f| lines(f.first_line, f.last_line) > FUNCTION_LINES);
    long.map(|f| {
        let lines = lines(f.first_line, f.last_line);
        source.finding(
            f.first_line,
            format!("`{}` has {lines} lines; at most {FUNCTION_LINES}", f.name),
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: usize) -> String {
        "//!\n".repeat(count)
    }

    #[test]
    fn long_files_are_reported() {
        for (path, bound) in [
            ("src/wal/x.rs", 1000),
            ("src/main.rs", 60),
            ("src/bin/shop.rs", 80),
            ("tests/x.rs", 1000),
        ] {
            assert_eq!(files(&Source::new(path, &lines(bound))), []);
            assert_eq!(files(&Source::new(path, &lines(bound + 1))).len(), 1, "{path}");
        }
    }

    #[test]
    fn long_functions_are_reported() {
        let function = |inner: usize| format!("fn long() {{\n{}}}\n", "    a();\n".repeat(inner));
        assert_eq!(functions(&Source::new("src/x.rs", &function(68))), []);
        let found = functions(&Source::new("src/x.rs", &function(69)));
        assert!(found[0].what.contains("`long` has 71 lines"), "{found:?}");
    }
}
