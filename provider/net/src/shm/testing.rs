//! Both sides of a ring, for tests.

use super::*;

/// Descriptors as another process gets them.
pub fn carry(descriptors: &[RawFd]) -> Vec<OwnedFd> {
    let (from, to) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
    let (mut sent, mut got) = (Control::new(), Control::new());
    sent.push_descriptors(descriptors);
    sys::send(from.as_raw_fd(), &sys::Name::Peer, [b"x", &[]], &sent, 0).unwrap();
    sys::recv(to.as_raw_fd(), &mut [0; 8], &mut got).unwrap().unwrap();
    sys::take_descriptors(&got)
}

/// What stays with the process that makes an offer.
pub fn keep(offer: Offer) -> (Writer, ControlSocket) {
    (offer.writer, offer.control)
}
