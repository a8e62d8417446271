//! What XRC targets and queues of different processes tell each other, on its way out.
//!
//! Queue pairs post under their locks; whoever holds the receive lock sends it through the
//! mailboxes. Bounded: a message that finds no room is lost, and whoever waits for the answer posts
//! it again. Touches nothing.

use roxe_base::lock::rank;
use roxe_base::queue::Queue;
use roxe_net::forward::Frame;
use roxe_net::slot::Slot;

/// Messages that wait to be sent.
pub(crate) const MAX_XRC_MESSAGES: usize = 1024;

/// A frame for another process.
#[derive(Clone, Debug)]
pub struct XrcMessage {
    /// Whose mailbox.
    pub to: Slot,
    /// What it is.
    pub frame: Frame,
    /// What follows.
    pub body: Vec<u8>,
}

/// What waits.
pub(crate) type XrcMessages = Queue<rank::XrcMessages, XrcMessage>;
