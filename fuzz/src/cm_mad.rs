//! Fuzz target: management datagrams to queue pair 1.

use roxe_wire::cm::{IpCmHeader, MAD_LEN, Mad, Message, PrivateData};

/// The input is a MAD. An input of another length is refused, and then truncated or filled with
/// zeros.
///
/// Properties: parsing never panics; a parsed message is written without additional bits, and
/// parses to an equal message; it prints as one line; the addresses in private data round-trip.
///
/// # Panics
/// If a property does not hold.
pub fn cm_mad(data: &[u8]) {
    assert!(data.len() == MAD_LEN || Mad::parse(data).is_err());
    let mut bytes = [0; MAD_LEN];
    let len = data.len().min(MAD_LEN);
    bytes[..len].copy_from_slice(&data[..len]);
    match Mad::parse(&bytes) {
        Ok(mad) => check(&bytes, &mad),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn check(read: &[u8; MAD_LEN], mad: &Mad) {
    let line = mad.to_string();
    assert!(!line.contains('\n') && line.contains(mad.message.name()), "{line:?}");
    let written = mad.to_bytes();
    assert_eq!(Mad::parse(&written).as_ref(), Ok(mad));
    assert!(written.iter().zip(read).all(|(ours, theirs)| ours & !theirs == 0), "{line}");
    match &mad.message {
        Message::Req(req) => check_addresses(&req.private_data),
        Message::SidrReq(req) => check_addresses(&req.private_data),
        _ => (),
    }
}

fn check_addresses<const N: usize>(private_data: &PrivateData<N>) {
    let Ok((header, program_data)) = IpCmHeader::parse(private_data.as_bytes()) else { return };
    let again = header.with_program_data::<N>(program_data).expect("parsed private data fits its field");
    assert_eq!(IpCmHeader::parse(again.as_bytes()), Ok((header, program_data)));
}
