//! The tables of docs/scaling-model.md are those of its model.
//!
//! Input: the page, and the tables of `benches/scaling`, each with the name of its place. Output: the page with these
//! tables between `<!-- NAME -->` and `<!-- end -->`. Invariant: every table has exactly one place.

#[path = "../../benches/scaling/model.rs"]
mod model;

const END: &str = "<!-- end -->";

pub fn tables() -> Vec<(&'static str, String)> {
    model::tables()
}

pub fn with_tables(page: &str, tables: &[(&str, String)]) -> String {
    let places = page.matches(END).count();
    assert_eq!(places, tables.len(), "places and tables of docs/scaling-model.md");
    tables.iter().fold(page.to_owned(), |page, (name, table)| {
        let place = format!("<!-- {name} -->\n");
        let (before, rest) = page.split_once(&place).expect("a place for each table");
        let (_, after) = rest.split_once(END).expect("the end of a table");
        format!("{before}{place}\n{table}\n{END}{after}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_the_model_does_not_compute_is_replaced() {
        let page = |figure: u8| format!("a\n<!-- x -->\n\n| {figure} |\n\n<!-- end -->\nb\n");
        let tables = [("x", "| 1 |\n".to_owned())];
        assert_eq!(with_tables(&page(2), &tables), page(1));
        assert_eq!(with_tables(&page(1), &tables), page(1));
    }
}
