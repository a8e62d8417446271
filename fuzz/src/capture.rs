//! Fuzz target: capture files.

use roxe_wire::NetHeader;
use roxe_wire::capture::{frames, ip_packet};

/// The input is a capture file.
///
/// Properties: reading never panics and ends; frames do not overlap; no frame follows an error;
/// every packet in a frame satisfies [`crate::packet()`].
///
/// # Panics
/// If a property does not hold.
pub fn capture(data: &[u8]) {
    let Ok(mut frames) = frames(data) else { return };
    let mut bytes = 0;
    while let Some(Ok(frame)) = frames.next() {
        bytes += frame.data.len();
        let Some(ip) = ip_packet(frame.link, frame.data) else { continue };
        if let Ok((net, datagram)) = NetHeader::parse_ip(ip) {
            let _ = net.to_grh(datagram.len());
            crate::packet(datagram);
        }
    }
    assert!(bytes <= data.len(), "frames do not overlap");
    assert!(frames.next().is_none(), "nothing follows an error or the end");
}
