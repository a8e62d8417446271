//! For how long a thread that waits for an event looks around before it sleeps, and when it is
//! expected back.

use std::time::Duration;

/// A thread that received for itself while it waited is expected to wait again so soon.
pub(crate) const BETWEEN_WAITS: Duration = Duration::from_micros(50);
/// Who is woken within so many times the usual patience gave up too soon: the next ones are as
/// patient as that. A peer that sleeps needs about 150 us to answer, for which two threads have to
/// wake up. If each gives up before the other one has, both sleep before every message: two of five
/// waits ended so, and `ib_send_lat -e` took 17 us instead of 3.
pub(crate) const LONG: u32 = 4;

/// Whether a thread that found what it waited for so long ago will wait again at once.
pub(crate) fn is_expected_back(since_catch: Duration) -> bool {
    since_catch < BETWEEN_WAITS
}

/// Whether a thread that was woken so long after it began to wait gave up too soon.
pub(crate) fn gave_up_too_soon(waited: Duration, usual: Duration) -> bool {
    waited < usual * LONG
}

/// How long to look around; `are_patient`: the last thread that slept [`gave_up_too_soon`].
pub(crate) fn patience(usual: Duration, are_patient: bool) -> Duration {
    if are_patient { usual * LONG } else { usual }
}
