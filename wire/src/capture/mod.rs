//! Capture files: frames out of pcap and pcapng ([`reader`]), packets into pcapng ([`writer`]).
//!
//! For tests, for `roxe dump` and for `ROXE_CAPTURE`. Both sides work on bytes in memory and leave
//! files to others. Formats: the Internet drafts draft-ietf-opsawg-pcap and
//! draft-ietf-opsawg-pcapng.

mod format;
pub mod reader;
pub mod writer;

pub use format::{Direction, Frame, LinkType};
pub use reader::{CaptureError, Frames, MAX_INTERFACES, frames, ip_packet};
pub use writer::{Outgoing, write_interface, write_packet, write_section};
