//! A password that cannot be printed by accident: `Debug` shows no part of it, and there is no
//! `Display`.

use std::fmt;

#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// Returns the secret, for the authentication exchange only.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_stars() {
        assert_eq!(format!("{:?}", Password::new("hunter2")), "***");
    }
}
