//! Fuzz target: fault rules and the packets that they apply to.

use roxe_transport::fault::{Direction, Injector, PacketContext, Rules};
use roxe_wire::{Gid, NetHeader, Packet, Qpn, icrc};
use std::time::Duration;

/// Number of bytes of the input that become one packet.
const PACKET_LEN: usize = 40;

/// The input is a text and, after a zero byte, packets.
///
/// Properties: parsing never panics and its errors have a text; rules round-trip through their
/// text; equal rules make equal decisions; corruption flips one bit, and the ICRC detects it.
///
/// # Panics
/// If a property does not hold.
pub fn rules(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let Ok(text) = std::str::from_utf8(&data[..end]) else { return };
    let rules = match text.parse::<Rules>() {
        Ok(rules) => rules,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let again: Rules = rules.to_string().parse().unwrap_or_else(|error| panic!("{rules}: {error}"));
    assert_eq!(again, rules, "{text}");
    let mut injectors = [&rules, &again].map(|rules| Injector::new(rules, 1));
    for bytes in data.get(end + 1..).unwrap_or_default().chunks(PACKET_LEN) {
        judge(&mut injectors, bytes);
    }
    let [first, second] = injectors.each_ref().map(|injector| injector.report().map(|line| line.to_string()));
    assert!(first.eq(second));
}

fn judge(injectors: &mut [Injector; 2], bytes: &[u8]) {
    let Ok(packet) = Packet::parse(bytes) else { return };
    let last = bytes[bytes.len() - 1];
    let dir = if last & 1 == 0 { Direction::Tx } else { Direction::Rx };
    let seen = PacketContext {
        dir,
        qpn: Qpn::new(17),
        ordinal: u32::from(last >> 1 & 1),
        peer: Gid([0; 16]),
        at: Duration::from_millis(last.into()),
        packet: &packet,
    };
    let [first, second] = injectors.each_mut().map(|injector| injector.judge(&seen));
    assert_eq!(first, second, "{packet}");
    let Some(corruption) = first.corrupt else { return };
    let net = NetHeader::default();
    let mut sealed = bytes.to_vec();
    icrc::seal(&net, &mut sealed);
    corruption.apply(&mut sealed);
    assert!(!icrc::verify(&net, &sealed), "{corruption:?} of {packet} is not detected");
}
