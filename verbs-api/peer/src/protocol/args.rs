//! The arguments of a request, read with a word about what is wrong. Touches nothing.

use super::names::{self, Table};
use super::refusal::{Refusal, Result, shortened};
use serde_json::{Map, Value};
use std::net::{IpAddr, Ipv6Addr};

/// The arguments of a request, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Args(Map<String, Value>);

impl Args {
    /// These arguments.
    #[must_use]
    pub const fn new(object: Map<String, Value>) -> Self {
        Self(object)
    }

    /// The JSON that they were read from.
    #[must_use]
    pub const fn object(&self) -> &Map<String, Value> {
        &self.0
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// Whether it was given.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// A number that may be left out.
    ///
    /// # Errors
    /// If it is no number or does not fit.
    pub fn optional<T: TryFrom<u64>>(&self, name: &str) -> Result<Option<T>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let number = read_number(value).ok_or_else(|| Refusal::invalid(format!("{name} is a number")))?;
        T::try_from(number).map(Some).map_err(|_| Refusal::invalid(format!("{name} {number} is too large")))
    }

    /// A number.
    ///
    /// # Errors
    /// If it is missing, is no number or does not fit.
    pub fn number<T: TryFrom<u64>>(&self, name: &str) -> Result<T> {
        self.optional(name)?.ok_or_else(|| missing(name))
    }

    /// A number, `otherwise` if it was not given.
    ///
    /// # Errors
    /// If it is no number or does not fit.
    pub fn or<T: TryFrom<u64>>(&self, name: &str, otherwise: T) -> Result<T> {
        Ok(self.optional(name)?.unwrap_or(otherwise))
    }

    /// A truth value, false if it was not given.
    ///
    /// # Errors
    /// If it is another type.
    pub fn is_set(&self, name: &str) -> Result<bool> {
        match self.value(name) {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| Refusal::invalid(format!("{name} is true or false"))),
        }
    }

    /// A text.
    ///
    /// # Errors
    /// If it is missing or no text.
    pub fn text(&self, name: &str) -> Result<&str> {
        let value = self.value(name).ok_or_else(|| missing(name))?;
        value.as_str().ok_or_else(|| Refusal::invalid(format!("{name} is a text")))
    }

    /// One of these names, as its number.
    ///
    /// # Errors
    /// If it is missing or not in the table.
    pub fn named(&self, name: &str, table: Table) -> Result<u32> {
        let text = self.text(name)?;
        names::number(table, text).ok_or_else(|| unknown(name, text, table))
    }

    /// Flags, if they were given: names in a list, names with `|` between them, or a number.
    ///
    /// # Errors
    /// If one of them is not in the table.
    pub fn flags(&self, name: &str, table: Table) -> Result<Option<u32>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let bit = |text: &str| names::number(table, text).ok_or_else(|| unknown(name, text, table));
        let union = |bits: u32, text: &str| Ok(bits | bit(text)?);
        match value {
            Value::Array(list) => list.iter().try_fold(0, |bits, text| {
                let text = text.as_str().ok_or_else(|| Refusal::invalid(format!("{name} is a list of names")))?;
                union(bits, text)
            }),
            Value::String(text) if read_number(value).is_none() => {
                text.split('|').map(str::trim).filter(|text| !text.is_empty()).try_fold(0, union)
            }
            _ => {
                let bits = self.number(name)?;
                let known = table.iter().fold(0, |known, (_, bit)| known | bit);
                if bits & !known != 0 {
                    return Err(Refusal::invalid(format!("{name}: {:#x} is no known flag", bits & !known)));
                }
                Ok(bits)
            }
        }
        .map(Some)
    }

    /// Bytes, if they were given.
    ///
    /// # Errors
    /// If they are no hexadecimal text.
    pub fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let bytes = value.as_str().and_then(from_hex);
        bytes.map(Some).ok_or_else(|| Refusal::invalid(format!("{name} is bytes as a hexadecimal text")))
    }

    /// A GID, if one was given: an IPv6 address, or an IPv4 address, which is mapped.
    ///
    /// # Errors
    /// If it is no address.
    pub fn gid(&self, name: &str) -> Result<Option<[u8; 16]>> {
        if !self.has(name) {
            return Ok(None);
        }
        let address = match self.text(name)?.parse() {
            Ok(IpAddr::V4(address)) => address.to_ipv6_mapped(),
            Ok(IpAddr::V6(address)) => address,
            Err(_) => return Err(Refusal::invalid(format!("{name} is an address, as of IPv6"))),
        };
        Ok(Some(Ipv6Addr::octets(&address)))
    }

    /// A list of objects, empty if it was not given.
    ///
    /// # Errors
    /// If it is no list of objects, or one has a member that `known` does not name.
    pub fn objects(&self, name: &str, known: &[&str]) -> Result<Vec<Self>> {
        let Some(value) = self.value(name) else { return Ok(Vec::new()) };
        let list = value.as_array().ok_or_else(|| Refusal::invalid(format!("{name} is a list")))?;
        list.iter()
            .map(|item| match item {
                Value::Object(object) if object.keys().all(|key| known.contains(&key.as_str())) => {
                    Ok(Self(object.clone()))
                }
                _ => Err(Refusal::invalid(format!("{name} is a list of objects with {}", known.join(", ")))),
            })
            .collect()
    }
}

fn read_number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        },
        _ => None,
    }
}

fn missing(name: &str) -> Refusal {
    Refusal::invalid(format!("{name} is missing"))
}

fn unknown(name: &str, text: &str, table: Table) -> Refusal {
    let known: Vec<_> = table.iter().map(|(name, _)| *name).collect();
    Refusal::invalid(format!("{name} {}: must be of {}", shortened(text), known.join(", ")))
}

/// The bytes of a hexadecimal text.
#[must_use]
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// The hexadecimal text of bytes.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::super::names::ACCESS;
    use super::*;

    fn args(value: Value) -> Args {
        let Value::Object(object) = value else { panic!("no object") };
        Args::new(object)
    }

    #[test]
    fn flags_are_names_or_a_number_and_nothing_unknown() {
        let read = |value: Value| args(serde_json::json!({ "access": value })).flags("access", ACCESS);
        assert_eq!(read(serde_json::json!(["LOCAL_WRITE", "REMOTE_READ"])), Ok(Some(5)));
        assert_eq!(read("LOCAL_WRITE | REMOTE_READ".into()), Ok(Some(5)));
        assert_eq!((read(5.into()), read("0x5".into()), read("".into())), (Ok(Some(5)), Ok(Some(5)), Ok(Some(0))));
        assert_eq!(read(Value::Null), Ok(None));
        assert!(read(64.into()).is_err() && read("ALL".into()).is_err() && read(Value::Bool(true)).is_err());
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        let args = args(serde_json::json!({"a": 256, "b": -1, "c": "0xffffffffffffffff"}));
        assert!(args.number::<u8>("a").is_err() && args.number::<u64>("b").is_err());
        assert_eq!(args.number::<u64>("c"), Ok(u64::MAX));
        assert_eq!(args.number::<u8>("d").unwrap_err().text, "d is missing");
    }

    #[test]
    fn bytes_are_read_as_they_were_written() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        assert_eq!((from_hex("0"), from_hex("0g"), from_hex("éa")), (None, None, None));
    }

    #[test]
    fn an_ipv4_address_is_a_mapped_gid() {
        let args = args(serde_json::json!({"dgid": "10.0.0.1", "b": "x"}));
        let gid = args.gid("dgid").unwrap().unwrap();
        assert_eq!((&gid[..12], &gid[12..]), (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255][..], &[10, 0, 0, 1][..]));
        assert!(args.gid("b").is_err() && args.gid("c").unwrap().is_none());
    }
}
