//! How big things may be: files, functions, parameter lists, the thin mains.
//!
//! Enters: a [`Source`]. Leaves: a [`Finding`] for each thing that outgrew its bound.

use super::source::{Finding, Source};

/// Lines of a file with its tests. Beyond this, files hold two ideas.
const FILE_LINES: usize = 500;
/// Lines of a function: what one screen shows.
const FUNCTION_LINES: usize = 70;
/// Parameters, `self` included.
const PARAMETERS: usize = 5;
/// Lines of `src/main.rs`: parse, set up logs, dispatch, exit code.
const MAIN_LINES: usize = 60;
/// Lines of a binary's file.
const BIN_LINES: usize = 80;

pub fn files(source: &Source) -> Vec<Finding> {
    let bound = match source.room() {
        Some("main") => MAIN_LINES,
        Some("bin") => BIN_LINES,
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

pub fn parameters(source: &Source) -> Vec<Finding> {
    let wide = source.functions.iter().filter(|f| f.parameters > PARAMETERS && !f.is_dictated);
    wide.map(|f| {
        let what = format!("`{}` takes {} parameters; at most {PARAMETERS}", f.name, f.parameters);
        source.finding(f.first_line, what)
    })
    .collect()
}

/// The library's root is a map: documentation and modules, no code.
pub fn library_root(source: &Source) -> Vec<Finding> {
    if source.room() != Some("lib") {
        return Vec::new();
    }
    let is_map = |line: &str| {
        let line = line.trim();
        line.is_empty()
            || ["pub mod ", "pub use ", "mod ", "#!", "#[cfg(feature"]
                .iter()
                .any(|start| line.starts_with(start))
    };
    let strays = source.shipped_lines().filter(|(_, line)| !is_map(line));
    strays
        .map(|(line, _)| source.finding(line, "lib.rs holds the map and the rooms only"))
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
            ("src/wal/x.rs", 500),
            ("src/main.rs", 60),
            ("src/bin/shop.rs", 80),
            ("tests/x.rs", 500),
        ] {
            assert_eq!(files(&Source::new(path, &lines(bound))), []);
            assert_eq!(files(&Source::new(path, &lines(bound + 1))).len(), 1, "{path}");
        }
    }

    #[test]
    fn long_functions_are_reported() {
        let function = |inner: usize| format!("fn long() {{\n{}}}\n", "a();\n".repeat(inner));
        assert_eq!(functions(&Source::new("src/x.rs", &function(68))), []);
        let found = functions(&Source::new("src/x.rs", &function(69)));
        assert!(found[0].what.contains("`long` has 71 lines"), "{found:?}");
    }

    #[test]
    fn wide_functions_are_reported() {
        let five = "impl X { fn f(&self, a: A<B, C>, b: (D, E), c: [u8; 2], d: impl Fn(F, G)) {} }";
        assert_eq!(parameters(&Source::new("src/x.rs", five)), []);
        let six = "fn f(a: u8, b: u8, c: u8, d: u8, e: u8, f: u8,) {}";
        assert_eq!(parameters(&Source::new("src/x.rs", six)).len(), 1);
        let dictated = format!("impl Theirs for Ours {{ {six} }}");
        assert_eq!(parameters(&Source::new("src/x.rs", &dictated)), []);
    }

    #[test]
    fn code_in_the_map_is_reported() {
        assert_eq!(
            library_root(&Source::new(
                "src/lib.rs",
                "//! Map.\n\n#[cfg(feature = \"x\")]\npub mod wal;\n"
            )),
            []
        );
        let found = library_root(&Source::new("src/lib.rs", "//! Map.\npub fn f() {}\n"));
        assert_eq!(found.len(), 1);
    }
}
