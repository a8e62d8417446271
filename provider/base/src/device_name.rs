//! What devices are called (`ROXE_DEVICE_NAME`). Touches nothing.

/// What devices are called: a text, and the number of the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName {
    stem: String,
    first: u32,
}

impl Default for DeviceName {
    fn default() -> Self {
        Self { stem: "roxe".to_owned(), first: 0 }
    }
}

impl DeviceName {
    pub(crate) const RULE: &str = "it must be letters, _ and - with a number behind, such as mlx5_0";
    /// Bytes that leave room for a number in the 64 of a name.
    const MAX: usize = 56;

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if text.is_empty() || text.len() > Self::MAX || !text.bytes().all(is_allowed) {
            return None;
        }
        let stem = text.trim_end_matches(|digit: char| digit.is_ascii_digit());
        let number = &text[stem.len()..];
        // "x007" would come back as "x7", and "x" as "x0".
        let first: u32 = number.parse().ok().filter(|first: &u32| first.to_string() == number)?;
        first.checked_add(u32::from(u16::MAX))?;
        Some(Self { stem: stem.to_owned(), first })
    }

    /// The name of device number `index` of a process.
    pub fn nth(&self, index: u32) -> String {
        format!("{}{}", self.stem, self.first.saturating_add(index))
    }

    /// Whether a device of ours could be called so.
    pub fn matches(&self, name: &str) -> bool {
        let number = name.strip_prefix(&*self.stem).unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    }
}
