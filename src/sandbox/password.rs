//! A random password for a temporary server. `Debug` does not show it. Every user of the machine
//! can read command lines.

use std::fmt;
use std::fs::File;
use std::io::Read as _;

use super::SandboxError;

const SOURCE: &str = "/dev/urandom";

/// A password of 128 bits in hexadecimal digits, which need no quoting.
#[derive(Clone)]
pub struct RandomPassword(String);

impl RandomPassword {
    /// Draws a password. Error: the system's randomness cannot be read.
    pub fn draw() -> Result<Self, SandboxError> {
        let mut bytes = [0_u8; 16];
        File::open(SOURCE)
            .and_then(|mut source| source.read_exact(&mut bytes))
            .map_err(SandboxError::file("read", SOURCE))?;
        Ok(Self(format!("{:032x}", u128::from_be_bytes(bytes))))
    }

    /// 32 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for RandomPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RandomPassword(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_drawn_anew_needs_no_quotes_and_is_not_shown() {
        let (one, other) = (RandomPassword::draw().unwrap(), RandomPassword::draw().unwrap());
        assert_ne!(one.as_str(), other.as_str());
        assert_eq!(one.as_str().len(), 32);
        assert!(one.as_str().chars().all(|char| char.is_ascii_hexdigit()), "{}", one.as_str());
        assert!(!format!("{one:?}").contains(one.as_str()));
    }
}
