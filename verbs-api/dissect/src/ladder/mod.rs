//! A ladder of packets as one page of HTML that needs nothing else: columns are the ends, rows are
//! arrows between them in the order of time, with a verdict and a sentence each.
//!
//! Knows no capture: whoever has packets to show fills a [`Page`]. All text of it is data for the
//! script of the page, which makes text of it again, never markup. Touches nothing.

use crate::fields::Section;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write;

const STYLE: &str = include_str!("ladder.css");
const SCRIPT: &str = include_str!("ladder.js");
const BODY: &str = include_str!("body.html");

/// All that a page shows.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// What it is about.
    pub title: String,
    /// Numbers for the top: name, value, and the tone of the value.
    pub facts: Vec<(&'static str, String, &'static str)>,
    /// Sentences below them: what is left out, and why.
    pub notes: Vec<String>,
    /// The ends, from left to right: host and queue pair.
    pub columns: Vec<(String, String)>,
    /// The arrows, from top to bottom, as the script of the page reads them.
    pub rows: Vec<Value>,
    /// What rows belong to; rows name them by their place.
    pub messages: Vec<Value>,
    /// The headers that rows have.
    pub shapes: Shapes,
}

/// The page as HTML.
pub fn render(page: &Page) -> String {
    let mut out = String::new();
    out.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    // Nothing is loaded from anywhere, whatever the packets say.
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

/// Text as HTML shows it.
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

/// A value as JSON that ends no script and begins no comment.
fn put(value: &Value, out: &mut String) {
    // In JSON `<` can only stand within a string.
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

/// The names of headers and their fields, each once.
#[derive(Clone, Debug, Default)]
pub struct Shapes {
    list: Vec<Value>,
    places: HashMap<(&'static str, Vec<&'static str>), usize>,
}

impl Shapes {
    /// A header: its shape, then its values.
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

    /// What a capture may say to break out of its page.
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
    fn nothing_of_a_page_becomes_markup() {
        let html = render(&hostile_page());
        assert_eq!(html.matches("<script").count(), 2);
        assert_eq!(html.matches("</script>").count(), 2);
        assert!(!html.contains("<!--") && !html.contains("\0"));
        assert!(html.contains("<title>&lt;/script&gt;&lt;script&gt;alert(1)"));
    }

    #[test]
    fn the_data_of_a_page_says_what_was_put_in() {
        let html = render(&hostile_page());
        let (_, data) = html.split_once("id=\"data\">").unwrap();
        let data: Value = serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
        assert_eq!(data["rows"][0][7], HOSTILE);
        assert_eq!(data["page"]["columns"][1][0], HOSTILE);
        assert_eq!(data["page"]["shapes"][0], json!(["BTH", ["PSN"]]));
        assert_eq!(data["rows"][0][12][0], json!([0, HOSTILE]));
    }

    #[test]
    fn a_page_loads_nothing() {
        let html = render(&Page::default());
        assert!(!html.contains("http://") && !html.contains("https://") && !html.contains("src="));
    }
}
