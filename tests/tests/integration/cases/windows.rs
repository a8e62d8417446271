//! Tests the access that memory windows give to peers: range, rights, queue pairs, and end.

use super::script::{in_every_config, on_every_network};

/// Connects two pairs of queue pairs, and creates a window of each type at b.
const WINDOWS: &str = "pair q rc
     pair p rc
     b window one 1
     b window two 2\n";

/// Part of the memory that peers can access only through windows.
const BIND: &str = "1048600+5000";

fn with_windows(script: &str) -> String {
    format!("{WINDOWS}{}", script.replace("BIND", BIND))
}

// clause: WINDOW-ACCESS, INVALIDATE-LOCAL
#[test]
fn window_is_readable_and_writable_until_invalidated() {
    for window in ["one", "two"] {
        let closed = if window == "one" { "bind" } else { "invalidate" };
        on_every_network(&with_windows(&format!(
            "b send q 1 bind BIND window={window}
             b sent 1 ok bind
             a fill 0+5000 3
             a send q 2 write 0+5000 @{window}+0
             a sent 2 ok write
             b holds BIND 3
             a send q 3 read 9000+100 @{window}+10
             a sent 3 ok read
             a send q 4 write 9000+100 @{window}+0
             a sent 4 ok write
             b send q 5 close window={window}
             b sent 5 ok {closed}"
        )));
        in_every_config(&with_windows(&format!(
            "b send q 1 bind BIND window={window}
             b sent 1 ok bind
             b send q 2 close window={window}
             b sent 2 ok {closed}
             a fill 0+8 3
             a send q 3 write 0+8 @{window}+0
             a sent 3 rem_access
             b blank BIND"
        )));
    }
}

// clause: WINDOW-ACCESS
#[test]
fn window_restricts_range_and_rights() {
    for (request, access) in
        [("read 0+5000 @two+1", 14), ("write 0+8 @two+4993", 14), ("write 0+8 @two+0", 4), ("read 0+8 @two+0", 2)]
    {
        in_every_config(&with_windows(&format!(
            "b send q 1 bind BIND window=two access={access}
             b sent 1 ok bind
             a send q 2 {request}
             a sent 2 rem_access
             b blank BIND"
        )));
    }
}

#[test]
fn zero_based_window_is_addressed_from_its_first_byte() {
    in_every_config(&with_windows(
        "b send q 1 bind BIND window=two access=46
         b sent 1 ok bind
         a fill 0+2 4
         a send q 2 write 0+2 @two+4998
         a sent 2 ok write
         b holds 1053598+2 4
         a send q 3 write 0+2 @two+4999
         a sent 3 rem_access",
    ));
}

// clause: WINDOW-TYPE-1, WINDOW-TYPE-2
#[test]
fn type_2_window_serves_its_qp_and_type_1_window_all_qps() {
    in_every_config(&with_windows(
        "b send q 1 bind BIND window=one
         b send q 2 bind 1060000+8 window=two
         b sent 1 ok bind
         b sent 2 ok bind
         a send p 3 write 0+8 @one+0
         a sent 3 ok write
         a send q 4 write 0+8 @two+0
         a sent 4 ok write
         a send p 5 write 0+8 @two+0
         a sent 5 rem_access
         a send q 6 write 0+8 @two+0
         a sent 6 ok write",
    ));
}

// clause: WINDOW-TYPE-1
#[test]
fn rebound_type_1_window_rejects_old_key() {
    in_every_config(&with_windows(
        "b send q 1 bind BIND window=one
         b sent 1 ok bind
         b send q 2 bind 1060000+8 window=one
         b sent 2 ok bind
         a send q 3 write 0+8 @one+0
         a sent 3 ok write
         a send q 4 write 0+8 @one+0!
         a sent 4 rem_access",
    ));
}

// clause: INVALIDATE-KEY
#[test]
fn send_with_invalidate_closes_type_2_window() {
    on_every_network(&with_windows(
        "b send q 1 bind BIND window=two
         b sent 1 ok bind
         b recv q 2
         a send q 3 write 0+8 @two+0 unsignaled
         a send q 4 send closes=two
         a sent 4 ok send
         b got 2 ok recv closed=two",
    ));
    in_every_config(&with_windows(
        "b send q 1 bind BIND window=two
         b sent 1 ok bind
         b recv q 2
         a send q 4 send closes=two
         a sent 4 ok send
         b got 2 ok recv closed=two
         a send q 5 read 0+8 @two+0
         a sent 5 rem_access",
    ));
}

/// Binds and invalidates a window per request, with a new key each, like storage protocols.
// clause: WINDOW-TYPE-2
#[test]
fn window_per_message_is_bound_and_invalidated() {
    let messages = (1..=30).map(|turn| {
        let close = match turn % 2 {
            0 => "b recv q 2\na send q 3 send closes=two\na sent 3 ok send\nb got 2 ok recv closed=two",
            _ => "b send q 3 close window=two\nb sent 3 ok invalidate",
        };
        format!(
            "b send q 1 bind BIND window=two\nb sent 1 ok bind\na fill 0+5000 {turn}\n\
             a send q 4 write 0+5000 @two+0\na sent 4 ok write\nb holds BIND {turn}\n{close}\n"
        )
    });
    on_every_network(&with_windows(&messages.collect::<String>()));
}

// clause: WINDOW-BIND
#[test]
fn bind_without_mw_bind_access_fails_in_queue_order() {
    in_every_config(&with_windows("b send q 1 bind 0+8 window=two\nb sent 1 mw_bind\nb state q err"));
}

// clause: INVALIDATE-LOCAL, WINDOW-TYPE-2
#[test]
fn type_2_window_is_invalidated_only_by_its_qp() {
    in_every_config(&with_windows(
        "b send q 1 bind BIND window=two
         b sent 1 ok bind
         b send p 2 close window=two
         b sent 2 mw_bind
         b state p err
         b send q 3 close window=two
         b sent 3 ok invalidate",
    ));
}
