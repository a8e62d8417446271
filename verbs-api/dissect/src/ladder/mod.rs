//! A ladder of packets as one page of HTML that needs nothing else: columns are the ends, rows are
//! arrows between them in the order of time, with a verdict and a sentence each.
//!
//! Knows no capture: whoever has packets to show fills a [`Page`]. All text of it is data for the
//! script of the page, which makes text of it again, never markup. Touches nothing.

use crate::event::Tone;
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
    /// Numbers for the top: name, value, and whether the value is a reason to look.
    pub facts: Vec<(&'static str, String, Tone)>,
    /// Sentences below them: what is left out, and why.
    pub notes: Vec<String>,
    /// The ends, from left to right.
    pub columns: Vec<Column>,
    /// The arrows, from top to bottom.
    pub rows: Vec<Row>,
    /// What rows belong to; rows name them by their place.
    pub messages: Vec<MessageRow>,
}

/// An end of arrows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Column {
    /// The host.
    pub host: String,
    /// The queue pair.
    pub name: String,
}

/// An arrow.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its number, as the source counts.
    pub number: usize,
    /// When, in nanoseconds from the first.
    pub time: u64,
    /// Where it begins and ends: places in `columns`.
    pub ends: (usize, usize),
    /// What stands on it.
    pub label: String,
    /// Its verdict in a word or two.
    pub verdict: &'static str,
    /// How much attention it deserves.
    pub tone: Tone,
    /// What it means, in a sentence.
    pub words: String,
    /// What the source says about it.
    pub remark: String,
    /// The message that it belongs to.
    pub message: Option<usize>,
    /// It answers: goes from the responder to the requester.
    pub is_response: bool,
    /// It did not arrive.
    pub is_lost: bool,
    /// Which way it went, if that is known: `sent` or `received`.
    pub way: &'static str,
    /// Its headers.
    pub sections: Vec<Section>,
}

/// A message, for the table of messages.
#[derive(Clone, Debug)]
pub struct MessageRow {
    /// What it does.
    pub operation: String,
    /// Its ends: places in the columns.
    pub ends: (usize, usize),
    /// Its first PSN.
    pub psn: u32,
    /// Its payload.
    pub bytes: u64,
    /// Its packets, with those that came again.
    pub packets: u32,
    /// Those that came again.
    pub repeats: u32,
    /// When it began, nanoseconds.
    pub begin: u64,
    /// When it ended, nanoseconds.
    pub end: Option<u64>,
    /// How it ended.
    pub outcome: String,
    /// How much attention that deserves.
    pub tone: Tone,
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
    let mut shapes = Shapes::default();
    out.push_str("{\"rows\":[\n");
    for (index, row) in page.rows.iter().enumerate() {
        out.push_str(if index == 0 { "" } else { ",\n" });
        put(&row_value(row, &mut shapes), out);
    }
    out.push_str("],\n\"messages\":[\n");
    for (index, message) in page.messages.iter().enumerate() {
        out.push_str(if index == 0 { "" } else { ",\n" });
        put(&message_value(message), out);
    }
    out.push_str("],\n\"page\":");
    let facts: Vec<_> = page.facts.iter().map(|(name, value, tone)| json!([name, value, tone.name()])).collect();
    let columns: Vec<_> = page.columns.iter().map(|column| json!([column.host, column.name])).collect();
    let (title, notes, shapes) = (&page.title, &page.notes, &shapes.list);
    put(&json!({ "title": title, "facts": facts, "notes": notes, "columns": columns, "shapes": shapes }), out);
    out.push('}');
}

fn row_value(row: &Row, shapes: &mut Shapes) -> Value {
    let message = row.message.map_or(-1, |message| message as i64);
    let sections: Vec<Value> = row.sections.iter().map(|section| shapes.value(section)).collect();
    let flags = u8::from(row.is_response) | u8::from(row.is_lost) << 1;
    let Row { number, time, ends: (from, to), label, verdict, words, remark, way, .. } = row;
    let tone = row.tone.name();
    json!([number, time, from, to, label, verdict, tone, words, remark, message, flags, way, sections])
}

fn message_value(message: &MessageRow) -> Value {
    let MessageRow { operation, ends: (from, to), psn, bytes, packets, repeats, begin, end, outcome, tone } = message;
    json!([operation, from, to, psn, bytes, packets, repeats, begin, end, outcome, tone.name()])
}

/// The names of headers and their fields, each once.
#[derive(Debug, Default)]
struct Shapes {
    list: Vec<Value>,
    places: HashMap<(&'static str, Vec<&'static str>), usize>,
}

impl Shapes {
    /// A header: its shape, then its values.
    fn value(&mut self, section: &Section) -> Value {
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

    fn row() -> Row {
        Row {
            number: 1,
            time: 0,
            ends: (0, 1),
            label: HOSTILE.into(),
            verdict: "ok",
            tone: Tone::Good,
            words: HOSTILE.into(),
            remark: HOSTILE.into(),
            message: Some(0),
            is_response: false,
            is_lost: false,
            way: "sent",
            sections: vec![Section { name: "BTH", fields: vec![("PSN", HOSTILE.into())] }],
        }
    }

    fn hostile_page() -> Page {
        let column = Column { host: HOSTILE.into(), name: HOSTILE.into() };
        let facts = vec![("packets", HOSTILE.into(), Tone::Good)];
        let (title, notes) = (HOSTILE.to_owned(), vec![HOSTILE.to_owned()]);
        Page { title, facts, notes, columns: vec![column.clone(), column], rows: vec![row()], messages: vec![] }
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
