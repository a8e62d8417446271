//! Memory windows in the table of keys: closing them, and counting them at the region that they are
//! bound to.
//!
//! A window has a slot of the table for as long as it lives; binding fills the slot with the part
//! of the region that it opens, so that a peer's access finds windows and regions alike. Touches
//! the table only.

use crate::region::{Region, Window};
use roxe_base::table::Slots;

/// Closes every window that `which` picks.
pub(crate) fn close_all(regions: &mut Slots<Region>, which: impl Fn(&Region) -> bool) {
    let picked = |(key, entry): (u32, &Region)| entry.window().filter(|_| which(entry)).map(|window| (key, window));
    let windows: Vec<_> = regions.iter().filter_map(picked).collect();
    for (key, window) in windows {
        close(regions, key, window);
    }
}

/// Closes the window under `key`, which keeps that key.
pub(crate) fn close(regions: &mut Slots<Region>, key: u32, window: Window) {
    release(regions, window);
    if let Some(entry) = regions.get_mut(key) {
        *entry = window.closed();
    }
}

/// The region that `window` was bound to has one window less.
pub(crate) fn release(regions: &mut Slots<Region>, window: Window) {
    if let Some(region) = window.region(regions) {
        region.count_windows(|windows| windows - 1);
    }
}
