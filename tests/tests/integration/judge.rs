//! Checks that `roxe judge` finds no fault of roxe and of kernel cards in captures of their
//! packets.

use roxe_dissect::judge::{Charge, Class, Judgement, Vantage, judge};
use roxe_dissect::{Captured, Item, items};
use roxe_drill::{Target as _, VirtualCard, conform};
use std::fs;
use std::path::Path;

/// Returns the packets of a capture.
fn packets(file: &[u8]) -> Vec<Captured<'_>> {
    let found = items(file, |_| false).expect("parse the capture");
    found.filter_map(|item| if let Item::Packet(packet) = item { Some(packet) } else { None }).collect()
}

fn judged(file: &[u8]) -> Judgement {
    judge(&packets(file), Vantage::default())
}

fn faults(judgement: &Judgement) -> impl Iterator<Item = &Charge> {
    judgement.charges.iter().filter(|charge| charge.class == Class::Fault)
}

#[test]
fn catalogue_packets_bring_no_charge_against_the_card() {
    let mut card = VirtualCard::default();
    let address = card.card(false).expect("find the IPv4 address of the card").address;
    let (mut wrong, mut cases, mut near) = (Vec::new(), 0, 0);
    let catalogue = conform::catalogue(&[]).expect("parse the catalogue");
    // A capture does not show that a queue pair was reset, and the judge would treat the
    // connections before and after as one.
    for script in catalogue.iter().filter(|script| !script.name().contains("/second_life")) {
        for case in script.cases() {
            let outcome = roxe_drill::run(script.name(), case, &mut card);
            let file = outcome.log.to_pcapng();
            let judgement = judged(&file);
            cases += 1;
            for charge in faults(&judgement) {
                if charge.card.address == address || charge.card.address == card.card(true).expect("IPv6").address {
                    wrong.push(format!("{} [{case}]: {charge}", script.name()));
                } else {
                    near += 1;
                }
            }
        }
    }
    println!("{cases} cases, {near} charges against the near side");
    assert!(wrong.is_empty(), "{} of {cases}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn captures_of_kernel_cards_bring_no_charge() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures");
    let mut seen = 0;
    for entry in fs::read_dir(folder).expect("list the folder of captures") {
        let path = entry.expect("read an entry of the folder").path();
        if path.extension().is_some_and(|extension| extension == "pcap") {
            let file = fs::read(&path).expect("read the capture");
            let judgement = judged(&file);
            seen += 1;
            let charges: Vec<_> = judgement.charges.iter().map(ToString::to_string).collect();
            assert!(charges.is_empty(), "{}: {charges:#?}", path.display());
        }
    }
    assert_eq!(seen, 18);
}
