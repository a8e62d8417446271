//! Why bytes are not a message of the connection manager. Pure data.

use core::fmt;

/// Why bytes are not a message of the connection manager. All of these are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MadError {
    /// Not 256 bytes.
    Length,
    /// The base version of the MAD is not 1.
    BaseVersion,
    /// The management class is another.
    Class,
    /// The version of the class is not 2.
    ClassVersion,
    /// Not the method "Send".
    Method,
    /// An attribute id that names no message.
    Attribute,
    /// More additional information than there is room for.
    InfoLength,
}

impl MadError {
    /// Every reason, for counters.
    pub const ALL: [Self; 7] = [
        Self::Length,
        Self::BaseVersion,
        Self::Class,
        Self::ClassVersion,
        Self::Method,
        Self::Attribute,
        Self::InfoLength,
    ];

    /// A short name for counters and logs.
    pub const fn name(self) -> &'static str {
        self.texts().0
    }

    /// What it means, for people.
    pub const fn words(self) -> &'static str {
        self.texts().1
    }

    /// Its name, and what it means.
    const fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Length => ("mad_length", "a MAD of other than 256 bytes"),
            Self::BaseVersion => ("mad_base_version", "unknown base version of a MAD"),
            Self::Class => ("mad_class", "a MAD of another class"),
            Self::ClassVersion => ("mad_class_version", "unknown class version of a MAD"),
            Self::Method => ("mad_method", "a MAD of another method"),
            Self::Attribute => ("mad_attribute", "unknown attribute of a MAD"),
            Self::InfoLength => ("mad_info_length", "more additional information than there is room for"),
        }
    }
}

impl fmt::Display for MadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

impl core::error::Error for MadError {}
