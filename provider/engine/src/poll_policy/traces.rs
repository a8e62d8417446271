//! Traces of real programs, replayed through the policy. The first line of a trace is the name of
//! its program; each other line is one event with its time in nanoseconds.
//!
//! - `poll FROM UNTIL FOUND`: polls less than 10 µs apart, FOUND of which found packets
//! - `served AT`: the background thread received packets
//! - `request AT`, `post AT`: a request with AckReq arrived; the program posted a request
//! - `silence AT`: the delay of an acknowledgement expired
//! - `arm AT`: the program requested an event
//! - `wait AT`: the program began to wait for the event
//! - `awake AT`: the event ended the wait before the program slept
//! - `sleep AT`, `woken AT`: the program slept, and the event woke it
//!
//! Replays ignore `silence`, `arm` and `sleep`: they only help a reader of the trace.

use super::delayed_ack::{DelayedAck, due_in_background};
use super::spin::{Next, Poll, SpinRound};
use super::{Background, Course, SERVED, SHORT_TICK, Served, WakeUp, gave_up_too_soon, spin_time};
use crate::presence::Presence;
use roxe_transport::time::Instant;
use std::time::Duration;

const US: Duration = Duration::from_micros(1);
/// Default of `ROXE_SPIN_US`.
const SPIN_TIME: Duration = Duration::from_micros(50);

macro_rules! trace {
    ($name:literal) => {
        events(include_str!(concat!("traces/", $name, ".txt")))
    };
}

/// Name, time, and further numbers.
type Event<'a> = (&'a str, Instant, Vec<u64>);

fn events(trace: &str) -> Vec<Event<'_>> {
    let lines = trace.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split(' ');
            let name = words.next().unwrap();
            let mut numbers = words.map(|word| word.parse::<u64>().unwrap());
            let at = Instant(numbers.next().unwrap() + START);
            (name, at, numbers.collect())
        })
        .collect()
}

/// Start of traces in nanoseconds. A new policy starts at 0, which must be long past.
const START: u64 = 1_000_000_000;

/// Delays of acknowledgements in a replay.
#[derive(Debug, Default)]
struct Acks {
    /// For each request, the delay of its acknowledgement.
    delays: Vec<Option<Duration>>,
    /// Delayed acknowledgements that were sent because the program posted no answer in time.
    unanswered: usize,
}

fn replay_acks(events: &[Event<'_>]) -> Acks {
    let (mut policy, mut acks, mut waiting) = (DelayedAck::default(), Acks::default(), None::<Instant>);
    for &(name, at, _) in events {
        if waiting.take_if(|until| due_in_background(*until) <= at).is_some() {
            policy.on_expiry();
            acks.unanswered += 1;
        }
        match name {
            "request" => {
                waiting = policy.on_request(at);
                acks.delays.push(waiting.map(|until| due_in_background(until).since(at)));
            }
            "post" => {
                policy.on_post(at);
                waiting = None;
            }
            _ => {}
        }
    }
    acks
}

impl Acks {
    /// Returns the number of requests before the first delayed acknowledgement.
    fn requests_before_delay(&self) -> Option<usize> {
        self.delays.iter().position(Option::is_some)
    }

    /// Returns the percentage of delayed acknowledgements from the first delayed one on.
    fn delayed_percent(&self) -> usize {
        let since = self.delays.get(self.requests_before_delay().unwrap_or_default()..).unwrap_or_default();
        100 * since.iter().flatten().count() / since.len().max(1)
    }
}

#[test]
fn ping_pong_acks_are_delayed_from_33rd_request_on() {
    for trace in [trace!("ib_write_lat_shm_acks"), trace!("ib_write_lat_udp_acks")] {
        let acks = replay_acks(&trace);
        let figures = (acks.requests_before_delay(), acks.delayed_percent(), acks.unanswered);
        assert_eq!(figures, (Some(32), 100, 0), "{acks:?}");
        assert!(acks.delays.iter().flatten().all(|&delay| delay <= 200 * US), "{acks:?}");
    }
}

#[test]
fn irregular_ping_pong_acks_are_mostly_delayed() {
    let acks = replay_acks(&trace!("ucx_tag_lat_udp_acks"));
    assert!(acks.requests_before_delay().is_some_and(|first| (32..64).contains(&first)), "{acks:?}");
    assert!(acks.delayed_percent() >= 60 && acks.unanswered <= 2, "{acks:?}");
}

#[test]
fn stream_acks_are_never_delayed() {
    let acks = replay_acks(&trace!("ib_write_bw_shm_acks"));
    assert_eq!((acks.requests_before_delay(), acks.delays.len()), (None, 400));
}

/// Behaviour of the background thread while the program of a trace runs.
#[derive(Debug, Default)]
struct Wakeups {
    count: usize,
    /// Number of wake-ups after which the thread is muted.
    muted: usize,
    /// Delays of the packets that the program does not receive itself.
    delays: Vec<Duration>,
    span: Duration,
}

/// Arrival of a packet; true if the program receives the packet itself.
type PacketAt = (Instant, bool);
/// Start and end of polling without a pause.
type PollPeriod = (Instant, Instant);

fn packets_and_polls(events: &[Event<'_>]) -> (Vec<PacketAt>, Vec<PollPeriod>) {
    let (mut packets, mut polls) = (Vec::new(), Vec::new());
    for (name, at, numbers) in events {
        match (*name, numbers.as_slice()) {
            ("poll", &[until, found]) => {
                let until = Instant(until + START);
                let between = until.since(*at).as_nanos() as u64 / (found + 1);
                packets.extend((1..=found).map(|nth| (Instant(at.0 + nth * between), true)));
                polls.push((*at, until));
            }
            ("served", _) => packets.push((*at, false)),
            _ => {}
        }
    }
    packets.sort();
    (packets, polls)
}

fn replay_background(events: &[Event<'_>]) -> Wakeups {
    let (packets, polls) = packets_and_polls(events);
    let (presence, mut policy, mut wakeups) = (Presence::default(), Background::default(), Wakeups::default());
    let end = packets.last().unwrap().0;
    wakeups.span = end.since(packets[0].0);
    let (mut served, mut muted_until) = (0, None::<Instant>);
    loop {
        let next = packets.get(served).map(|packet| packet.0);
        let Some(now) = muted_until.or(next).filter(|&now| now <= end) else { return wakeups };
        wakeups.count += 1;
        let last = polls.iter().rev().find(|(from, _)| *from <= now);
        let seen = WakeUp {
            since_poll: last.map_or(Duration::MAX, |(_, until)| now.since(*until)),
            is_receiving: false,
            waiter_receives: false,
            is_muted: muted_until.is_some(),
        };
        let arrived = packets.iter().skip(served).take_while(|(at, _)| *at <= now);
        let course = policy.course(&seen, || last.is_some_and(|(_, until)| now <= *until));
        muted_until = match course {
            Course::Leave(points) if presence.mute(points) => {
                wakeups.muted += 1;
                Some(now.after(policy.tick()))
            }
            Course::Leave(_) => None,
            Course::Serve => {
                let delays = arrived.clone().filter(|(_, by_program)| !by_program).map(|(at, _)| now.since(*at));
                let found = delays.clone().count() > 0;
                wakeups.delays.extend(delays);
                let served =
                    Served { found, is_polled: seen.is_polled(), is_armed: false, receives_before_sleep: false };
                if served.is_wanted() {
                    presence.muting.add(SERVED);
                }
                None
            }
        };
        served += arrived.count();
        if muted_until.is_none() {
            presence.muting.unmute();
            policy.note_listening(&seen);
        }
    }
}

#[test]
fn thread_is_mostly_muted_while_program_polls() {
    for (trace, per_ms) in [
        (trace!("ib_write_lat_shm_polls"), 3.2),
        (trace!("ib_write_lat_udp_polls"), 2.0),
        (trace!("ucx_tag_lat_udp_polls"), 2.5),
    ] {
        let wakeups = replay_background(&trace);
        let rate = wakeups.count as f64 / wakeups.span.as_secs_f64() / 1000.0;
        assert!(rate <= per_ms, "{rate} wake-ups per millisecond");
        assert!(wakeups.delays.iter().all(|&delay| delay <= SHORT_TICK), "{:?}", wakeups.delays);
    }
}

#[test]
fn sleeping_read_target_is_served_at_once() {
    for trace in [trace!("ib_read_bw_shm"), trace!("ib_read_lat_udp")] {
        let wakeups = replay_background(&trace);
        assert_eq!((wakeups.count, wakeups.muted), (400, 0));
        assert!(wakeups.delays.iter().all(Duration::is_zero));
    }
}

/// Returns the number of waits in `events`, and how many of them end without a sleep.
fn replay_waits(events: &[Event<'_>]) -> (usize, usize) {
    let (mut waits, mut awake, mut spins_longer, mut since) = (0, 0, false, None);
    for &(name, at, _) in events {
        match name {
            "wait" => since = Some(at),
            "awake" | "woken" => {
                let Some(since) = since.take() else { continue };
                waits += 1;
                let mut round = SpinRound::new(spin_time(SPIN_TIME, spins_longer), since);
                let polls = (1..).map(|nth| since.after(nth * US));
                let next = polls.map(|now| {
                    let poll = if now >= at { Poll::Enough } else { Poll::Empty };
                    round.after_poll(poll, now, || 0)
                });
                if next.into_iter().find(|next| *next != Next::Poll) == Some(Next::Enough) {
                    awake += 1;
                } else {
                    spins_longer = gave_up_too_soon(at.since(since), SPIN_TIME);
                }
            }
            _ => {}
        }
    }
    (waits, awake)
}

#[test]
fn event_driven_programs_mostly_avoid_sleeping() {
    for (trace, percent) in
        [(trace!("ib_send_lat_e_shm"), 99), (trace!("ib_send_lat_e_udp"), 90), (trace!("rping_shm"), 99)]
    {
        let (waits, awake) = replay_waits(&trace);
        assert!(waits >= 60 && 100 * awake >= percent * waits, "{awake} of {waits}");
    }
}
