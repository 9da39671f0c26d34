//! Prints the tables of docs/scaling-model.md: `cargo bench --bench scaling`.
//!
//! Input: none but the constants of `model`. Output: the tables on standard output, each after its name on the page.
//! Nothing is measured here, so that the tables are the same on every machine; `tests/tidy` compares them with the page.

#![expect(clippy::print_stdout, reason = "tables are what this program is for")]

mod model;

fn main() {
    // cargo test runs benchmarks, too, and says so by leaving this out.
    if std::env::args().any(|argument| argument == "--bench") {
        for (name, table) in model::tables() {
            println!("{name}\n\n{table}");
        }
    }
}
