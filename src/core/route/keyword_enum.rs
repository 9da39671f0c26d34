//! The macro [`keyword_enum`]: an enum for a setting that takes one of several words.

/// Defines an enum, its parser and its words from one table.
#[macro_export]
macro_rules! keyword_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// The words an operator may type, in order.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word an operator types for this choice.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            /// The choice behind a word.
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

pub use keyword_enum;
