//! Lines of `rdma` as text and JSON, with the keys, the order and the spaces of iproute2.

use serde_json::Value;
use std::fmt::Write as _;

/// A line of output, or an object of a JSON array.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Record(Vec<Field>);

#[derive(Clone, Debug, PartialEq)]
struct Field {
    key: String,
    value: Value,
    text: String,
}

impl Record {
    /// Appends a value whose text differs from `key value `, or is empty.
    pub(super) fn shown_as(&mut self, key: &str, value: impl Into<Value>, text: impl Into<String>) -> &mut Self {
        self.0.push(Field { key: key.to_owned(), value: value.into(), text: text.into() });
        self
    }

    /// Appends `key value `.
    pub(super) fn word(&mut self, key: &str, value: &str) -> &mut Self {
        self.shown_as(key, value, format!("{key} {value} "))
    }

    /// Appends `key value `.
    pub(super) fn number(&mut self, key: &str, value: u64) -> &mut Self {
        self.shown_as(key, value, format!("{key} {value} "))
    }

    /// Appends `key 0xvalue `; in JSON the digits without `0x`, as a string.
    pub(super) fn hex(&mut self, key: &str, value: u64) -> &mut Self {
        self.shown_as(key, format!("{value:x}"), format!("{key} {value:#x} "))
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find_map(|field| (field.key == key).then_some(&field.value))
    }

    #[cfg(test)]
    pub(super) fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|field| field.key.as_str()).collect()
    }

    pub(super) fn text(&self) -> String {
        self.0.iter().map(|field| field.text.as_str()).collect()
    }

    fn json(&self, is_pretty: bool) -> String {
        let mut text = String::new();
        for (index, Field { key, value, .. }) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let key = Value::from(key.as_str());
            _ = if is_pretty {
                write!(text, "{comma}\n        {key}: {value}")
            } else {
                write!(text, "{comma}{key}:{value}")
            };
        }
        if is_pretty { format!("{{{text}\n    }}") } else { format!("{{{text}}}") }
    }
}

/// Returns a JSON array. `others` are the objects of another array, as text.
pub(super) fn array(records: &[Record], others: &str, is_pretty: bool) -> String {
    let own = records.iter().map(|record| record.json(is_pretty));
    let all: Vec<_> = Some(others.to_owned()).filter(|others| !others.is_empty()).into_iter().chain(own).collect();
    let all = all.join(",");
    if is_pretty { format!("[ {all} ]\n") } else { format!("[{all}]\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let mut record = Record::default();
        record.shown_as("ifindex", 0, "").word("state", "RTS").hex("rkey", 0x2bb).number("pid", 7);
        record
    }

    #[test]
    fn text_and_json_have_the_layout_of_iproute2() {
        assert_eq!(record().text(), "state RTS rkey 0x2bb pid 7 ");
        let json = r#"{"ifindex":0,"state":"RTS","rkey":"2bb","pid":7}"#;
        assert_eq!(array(&[record(), record()], "", false), format!("[{json},{json}]\n"));
        assert_eq!(array(&[record()], "{\"a\":1}", false), format!("[{{\"a\":1}},{json}]\n"));
        let pretty = "[ {\n        \"a\": 1\n    },{\n        \"b\": 2\n    } ]\n";
        let both = [("a", 1), ("b", 2)].map(|(key, value)| Record::default().number(key, value).clone());
        assert_eq!(array(&both, "", true), pretty);
        assert_eq!(array(&[], "", false), "[]\n");
    }
}
