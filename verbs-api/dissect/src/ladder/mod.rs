//! A ladder diagram as one self-contained page of HTML: columns are queue pairs, rows are packets
//! in the order of time, each with a verdict and an explanation.
//!
//! All text of a [`Page`] is JSON data for the script of the page, which shows it as text, never as
//! markup.

use crate::fields::Section;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write;

const STYLE: &str = include_str!("ladder.css");
const SCRIPT: &str = include_str!("ladder.js");
const BODY: &str = include_str!("body.html");

/// Content of a page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Title.
    pub title: String,
    /// Facts at the top: name, value, and tone of the value.
    pub facts: Vec<(&'static str, String, &'static str)>,
    /// Notes below the facts, such as on omitted packets.
    pub notes: Vec<String>,
    /// Columns from left to right: host and queue pair.
    pub columns: Vec<(String, String)>,
    /// Packets from top to bottom, in the format of the page's script.
    pub rows: Vec<Value>,
    /// Messages; rows have their indexes.
    pub messages: Vec<Value>,
    /// Headers of the rows.
    pub shapes: Shapes,
}

/// Renders the page as HTML.
pub fn render(page: &Page) -> String {
    let mut out = String::new();
    out.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    // The page loads no other file, whatever the packets contain.
    out.push_str(
        "<meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n",
    );
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    let _ = write!(out, "<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n", escape(&page.title));
    let _ = write!(out, "<body>\n{BODY}<script type=\"application/json\" id=\"data\">\n");
    data(page, &mut out);
    let _ = write!(out, "\n</script>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n");
    out
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\0' => out.push('\u{fffd}'),
            _ => out.push(char),
        }
    }
    out
}

/// Writes JSON that neither ends a script nor begins a comment.
fn put(value: &Value, out: &mut String) {
    // In JSON, `<` occurs only in strings.
    out.push_str(&value.to_string().replace('<', "\\u003c"));
}

fn data(page: &Page, out: &mut String) {
    let Page { title, facts, notes, columns, rows, messages, shapes: Shapes { list: shapes, .. } } = page;
    for (start, list) in [("{\"rows\":[\n", rows), ("],\n\"messages\":[\n", messages)] {
        out.push_str(start);
        for (index, value) in list.iter().enumerate() {
            out.push_str(if index == 0 { "" } else { ",\n" });
            put(value, out);
        }
    }
    out.push_str("],\n\"page\":");
    put(&json!({ "title": title, "facts": facts, "notes": notes, "columns": columns, "shapes": shapes }), out);
    out.push('}');
}

/// Names of headers and their fields, stored once.
#[derive(Clone, Debug, Default)]
pub struct Shapes {
    list: Vec<Value>,
    places: HashMap<(&'static str, Vec<&'static str>), usize>,
}

impl Shapes {
    /// Returns a header as the index of its shape, followed by its values.
    pub(crate) fn value(&mut self, section: &Section) -> Value {
        let names: Vec<&'static str> = section.fields.iter().map(|(name, _)| *name).collect();
        let next = self.list.len();
        let place = *self.places.entry((section.name, names)).or_insert_with_key(|(name, names)| {
            self.list.push(json!([name, names]));
            next
        });
        let values = section.fields.iter().map(|(_, value)| Value::from(value.as_str()));
        Value::Array(std::iter::once(Value::from(place)).chain(values).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text that would break out of its page if it became markup.
    const HOSTILE: &str = "</script><script>alert(1)</script><!-- \"&'\u{2028}\0";

    fn hostile_page() -> Page {
        let mut shapes = Shapes::default();
        let section = shapes.value(&Section { name: "BTH", fields: vec![("PSN", HOSTILE.into())] });
        let row = json!([1, 0, 0, 1, HOSTILE, "ok", "good", HOSTILE, HOSTILE, 0, 0, "sent", [section]]);
        let columns = vec![(HOSTILE.to_owned(), HOSTILE.to_owned()); 2];
        let (title, facts) = (HOSTILE.to_owned(), vec![("packets", HOSTILE.into(), "good")]);
        Page { title, facts, notes: vec![HOSTILE.to_owned()], columns, rows: vec![row], messages: vec![], shapes }
    }

    #[test]
    fn text_of_a_page_never_becomes_markup() {
        let html = render(&hostile_page());
        assert_eq!(html.matches("<script").count(), 2);
        assert_eq!(html.matches("</script>").count(), 2);
        assert!(!html.contains("<!--") && !html.contains("\0"));
        assert!(html.contains("<title>&lt;/script&gt;&lt;script&gt;alert(1)"));
    }

    #[test]
    fn page_data_roundtrips() {
        let html = render(&hostile_page());
        let (_, data) = html.split_once("id=\"data\">").unwrap();
        let data: Value = serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
        assert_eq!(data["rows"][0][7], HOSTILE);
        assert_eq!(data["page"]["columns"][1][0], HOSTILE);
        assert_eq!(data["page"]["shapes"][0], json!(["BTH", ["PSN"]]));
        assert_eq!(data["rows"][0][12][0], json!([0, HOSTILE]));
    }

    #[test]
    fn ladder_page_loads_no_other_file() {
        let html = render(&Page::default());
        assert!(!html.contains("http://") && !html.contains("https://") && !html.contains("src="));
    }
}
