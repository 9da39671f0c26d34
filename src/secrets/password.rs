//! A password that cannot be printed by accident.
//!
//! Its bytes are accessible only through [`Password::reveal`]; `Debug` shows nothing of it, and there is no
//! `Display`.

use std::fmt;

/// A database password. Printing it shows stars.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// Wraps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// The secret itself, for the authentication exchange and nothing else.
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
