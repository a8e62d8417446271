//! Processes that end with what they are for.

use std::process::Child;

/// A process of ours; ended when this goes away, however that comes.
#[derive(Debug)]
pub(crate) struct Ended(pub(crate) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Fails if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
