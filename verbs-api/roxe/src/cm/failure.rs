//! The failures of connection management in words, for
//! [`FailedConnection`](crate::FailedConnection).
//!
//! Touches no device.

use crate::cm::CmEventKind;

/// What the end of an attempt means and what to do about it.
pub(crate) fn failure_text(kind: CmEventKind, status: i32) -> String {
    let because = match (kind, status) {
        (_, errno) if errno < 0 => std::io::Error::from_raw_os_error(errno.saturating_neg()).to_string(),
        (CmEventKind::Rejected, NO_LISTENER) => "nobody listens on that port there".into(),
        (CmEventKind::Rejected, CONSUMER) => "the program there refused; its private data may say why".into(),
        (CmEventKind::Rejected, STALE) => {
            "the peer still remembers an old connection of this queue pair; try again".into()
        }
        (CmEventKind::Rejected, reason) => {
            format!("the peer refused with reason {reason} of the standard's list for REJ")
        }
        (CmEventKind::Unreachable, status) if status > 0 => {
            format!("there is no such datagram service (status {status})")
        }
        _ => "it came instead of the expected event".into(),
    };
    format!("{}: {because}", what(kind))
}

/// Reasons of a REJ that have a text of their own.
const NO_LISTENER: i32 = 8;
const STALE: i32 = 10;
const CONSUMER: i32 = 28;

const fn what(kind: CmEventKind) -> &'static str {
    match kind {
        CmEventKind::AddrError => "no device leads to the address",
        CmEventKind::RouteError => "there is no path to the address",
        CmEventKind::ConnectError => "the queue pair could not be connected",
        CmEventKind::Unreachable => "the peer cannot be reached",
        CmEventKind::Rejected => "the connection was refused",
        CmEventKind::Disconnected => "the peer ended the connection",
        CmEventKind::DeviceRemoval => "the device was removed",
        CmEventKind::MulticastError => "the group could not be joined",
        _ => "another event",
    }
}
