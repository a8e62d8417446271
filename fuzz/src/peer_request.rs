//! Fuzz target: lines that a controller sends to an agent (`roxe peer`).

use roxe_peer::protocol::{self, Request, names};

/// The input is a line.
///
/// Properties: parsing never panics and its errors have a text; a request round-trips; accessors of
/// arguments never panic, and return equal numbers in every width that fits.
///
/// # Panics
/// If a property does not hold.
pub fn peer_request(data: &[u8]) {
    let _ = protocol::parse_answer(data);
    let request = match Request::parse(data) {
        Ok(request) => request,
        Err((_, refusal)) => return assert!(!refusal.text.is_empty()),
    };
    let line = request.line();
    assert_eq!(Request::parse(line.as_bytes()).as_ref(), Ok(&request), "{line}");
    let args = &request.args;
    for name in request.command.arguments() {
        let wide = args.optional::<u64>(name);
        if let Ok(Some(narrow)) = args.optional::<u8>(name) {
            assert_eq!(wide, Ok(Some(narrow.into())), "{line}");
        }
        for table in [names::ACCESS, names::SEND_FLAGS] {
            let known = table.iter().fold(0, |known, (_, bit)| known | bit);
            if let Ok(Some(bits)) = args.flags(name, table) {
                assert_eq!(bits & !known, 0, "{line}");
            }
        }
        if let Ok(Some(bytes)) = args.bytes(name) {
            assert_eq!(protocol::from_hex(&protocol::to_hex(&bytes)), Some(bytes), "{line}");
        }
        let _ = (args.is_set(name), args.text(name), args.gid(name));
        for table in [names::STATES, names::MIGRATION, names::PORT_SPACES] {
            if let Ok(number) = args.named(name, table) {
                assert!(table.iter().any(|(_, known)| *known == number), "{line}");
            }
        }
        for item in args.objects(name, &["mr", "offset", "length", "addr", "lkey"]).unwrap_or_default() {
            let _ = (item.number::<u32>("length"), item.optional::<u64>("mr"), item.or::<usize>("offset", 0));
        }
    }
}
