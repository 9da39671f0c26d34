//! librdkafka's version and features, for reports of users.

use rdkafka::ClientConfig;

/// Such as `2.12.1`.
pub fn client_version() -> String {
    rdkafka::util::get_rdkafka_version().1
}

/// Such as `gzip`, `zstd`, `ssl`.
pub fn client_features() -> Vec<String> {
    let features = ClientConfig::new()
        .create_native_config()
        .and_then(|config| config.get("builtin.features"))
        .unwrap_or_default();
    features.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_introduces_itself() {
        assert!(client_version().starts_with(|c: char| c.is_ascii_digit()), "{}", client_version());
        assert!(client_features().contains(&"lz4".to_owned()), "{:?}", client_features());
    }
}
