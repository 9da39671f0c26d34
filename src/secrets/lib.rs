//! Secrets: a type for passwords, reading them from files and commands, and masking them in output.
//!
//! ```
//! use postrider_secrets::{Password, PasswordCommand, mask_text};
//!
//! let shown = mask_text("postgres://app:hunter2@db/shop");
//! assert_eq!(shown, "postgres://app:****@db/shop");
//!
//! let words = vec!["printf".to_owned(), "hunter2".to_owned()];
//! let password: Password = PasswordCommand::new(words).expect("a program").run()?;
//! assert_eq!(format!("{password:?}"), "***");
//! # Ok::<(), postrider_secrets::SecretError>(())
//! ```

pub mod mask;
mod password;
mod reading;

pub use mask::{MASK, is_secret_name, mask_connection_string, mask_sentence, mask_text, shown};
pub use password::Password;
pub use reading::{PasswordCommand, SecretError, read_secret};
