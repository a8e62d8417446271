//! Fuzz target: the dissector and judge of capture files.

use roxe_dissect::judge::{Vantage, judge};
use roxe_dissect::{Analysis, Counts, Item, describe, items, page, render, sections};

/// The input is a capture file.
///
/// Properties: dissecting never panics and ends; every packet of the file is counted once; text of
/// the file does not become markup of the page; charges name packets of the file.
///
/// # Panics
/// When a property does not hold.
pub fn dissect(data: &[u8]) {
    let Ok(items) = items(data, |_| false) else { return };
    let (mut analysis, mut counts, mut findings) = (Analysis::default(), Counts::default(), Vec::new());
    for item in items {
        let Item::Packet(captured) = item else { continue };
        let finding = analysis.take(&captured);
        counts.add(&captured, &finding);
        let _ = (describe(&captured, &finding), sections(&captured));
        findings.push((captured, finding));
    }
    assert_eq!(counts.packets, findings.len());
    let captured: Vec<_> = findings.iter().map(|(captured, _)| *captured).collect();
    for is_complete in [false, true] {
        let judgement = judge(&captured, Vantage { is_complete });
        for charge in &judgement.charges {
            let ladder = judgement.ladder(charge, 3, 3);
            assert!(!charge.packets.is_empty() && charge.packets.iter().all(|packet| ladder.contains(packet)));
            assert!(ladder.iter().all(|packet| *packet < captured.len()));
        }
    }
    let title = "<i>\"'&";
    let html = render(&page(title.to_owned(), &findings, &analysis, &counts, vec![title.to_owned()]));
    let remarks = findings.iter().map(|(captured, _)| captured.remark).filter(|remark| remark.contains('<'));
    for text in remarks.chain([title]) {
        assert!(!html.contains(text), "{text:?} became markup");
    }
}
