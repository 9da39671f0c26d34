//! What no crate may be built with, and what the compiler cannot keep apart inside one.
//!
//! Input: cargo's list of what a crate is built from, and every [`Source`]. Output: a [`Finding`] for each
//! place. Which crate may know which other is in their manifests; this is about what comes along.

use std::path::Path;
use std::process::Command;

use super::source::{Finding, Source};

/// A crate with the features it is built with, and what may not come along.
pub struct Wall {
    krate: &'static str,
    features: &'static str,
    keeps_out: &'static [&'static str],
}

/// What has a runtime, a client or a terminal in it.
const ANY_IO: &[&str] = &["tokio", "rdkafka", "rustls", "clap", "axum", "redis", "tracing"];

/// Every wall that a manifest alone does not show.
pub const WALLS: &[Wall] = &[
    Wall { krate: "postrider-core", features: "", keeps_out: ANY_IO },
    Wall {
        krate: "postrider-postgres",
        features: "",
        keeps_out: &["rdkafka", "redis", "axum", "clap"],
    },
    Wall { krate: "postrider-config", features: "", keeps_out: &["rdkafka", "axum", "clap"] },
    Wall { krate: "postrider-kafka", features: "", keeps_out: &["tokio-postgres", "axum", "clap"] },
    Wall {
        krate: "postrider-relay",
        features: "",
        keeps_out: &["redis", "clap", "postrider-patterns"],
    },
    Wall {
        krate: "postrider-patterns",
        features: "outbox-writer",
        keeps_out: &["rdkafka", "redis", "rustls", "axum", "clap"],
    },
    Wall {
        krate: "postrider-patterns",
        features: "idempotency",
        keeps_out: &["rdkafka", "rustls", "axum", "clap"],
    },
    Wall {
        krate: "postrider-patterns",
        features: "idempotency-tower",
        keeps_out: &["rdkafka", "axum", "hyper", "tower", "clap"],
    },
    Wall {
        krate: "postrider-patterns",
        features: "outbox-writer,idempotency-tower,dead-letter,inbox,saga",
        keeps_out: &["postrider-relay", "postrider-postgres", "axum", "clap"],
    },
    Wall {
        krate: "postrider-shop",
        features: "",
        keeps_out: &["postrider-relay", "postrider-config"],
    },
];

/// What stands in the tree behind a wall and may not.
pub fn broken(wall: &Wall, tree: &str) -> Vec<Finding> {
    let names = tree.lines().filter_map(|line| line.split_whitespace().next());
    let found = names.filter(|name| wall.keeps_out.contains(name));
    let what = |name| format!("`{}` is built with `{name}`", wall.krate);
    found.map(|name| Finding { path: "Cargo.toml".into(), line: 0, what: what(name) }).collect()
}

/// What a crate is built from, one name and version per line.
pub fn tree(wall: &Wall, root: &Path) -> String {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--locked", "--prefix", "none", "--edges", "normal", "-p", wall.krate]);
    cargo.args(["--no-default-features", "--features", wall.features]).current_dir(root);
    let output = cargo.output().expect("cargo, which runs this test");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The thread that owns the replication socket has no runtime under it.
pub fn hot_path(source: &Source) -> Vec<Finding> {
    if !source.path.starts_with("src/relay/") {
        return Vec::new();
    }
    let line_of = |wanted: &str| {
        let mut lines = source.shipped_lines();
        lines.find(|(_, line)| line.contains(wanted)).map(|(number, _)| number)
    };
    let runtime = line_of("tokio::").or(line_of("tokio_postgres::"));
    let is_hot = source.path.starts_with("src/relay/hot") || line_of("wal::Stream").is_some();
    let what = "what has the replication stream is on the hot path: no tokio there";
    runtime.filter(|_| is_hot).map(|line| source.finding(line, what)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_that_comes_along_is_reported() {
        let found = broken(&WALLS[0], "postrider-core v0.1.0\nserde v1.0.1\ntokio v1.54.1 (*)\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].what.contains("`tokio`"));
        assert!(broken(&WALLS[0], "postrider-core v0.1.0\ntokio-util v1\n").is_empty());
    }

    #[test]
    fn the_hot_path_has_no_runtime() {
        let text = "use crate::wal::Stream;\nuse tokio::time::sleep;";
        assert_eq!(hot_path(&Source::new("src/relay/report.rs", text)).len(), 1);
        assert_eq!(hot_path(&Source::new("src/relay/hot.rs", "use tokio::time;")).len(), 1);
        assert!(hot_path(&Source::new("src/relay/supervise.rs", "use tokio::time;")).is_empty());
        assert!(hot_path(&Source::new("src/cli/mod.rs", text)).is_empty());
    }
}
