//! The faults to try: fault rules from the census of a first run, which lists its calls,
//! completions and packets. The most different faults come first.

use crate::output::Result;
use roxe_transport::fault::{Rules, Verb};
use std::collections::BTreeMap;

/// The kinds of faults to try.
#[derive(Clone, Copy, Debug)]
pub(super) struct Classes {
    pub(super) verbs: bool,
    pub(super) completions: bool,
    pub(super) events: bool,
    pub(super) packets: bool,
}

/// Duty of a program after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Duty {
    /// The program may fail, with a message.
    MayFail,
    /// The program must report the fault or fail.
    MustNotice,
    /// The program must pass: the network and the card behave as verbs allow.
    MustPass,
}

/// A fault, which is tried in a run of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Fault rules, or `weakest=SEED,NAME...`.
    pub(super) text: String,
    pub(super) duty: Duty,
    /// Place in the program, if the fault has one.
    pub(super) site: String,
    /// 0 for the first fault of its kind, 1 for the second one, and so on.
    tier: usize,
}

/// Prefix of a fault that is the weakest legal card.
const WEAKEST: &str = "weakest=";

impl Fault {
    pub(super) fn none() -> Self {
        Self::new(String::new(), "", 0)
    }

    /// Parses the fault of `--fault`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        match text.strip_prefix(WEAKEST) {
            Some(weakest) => _ = weakest.parse::<roxe_base::weakest::Wanted>()?,
            None => _ = text.parse::<Rules>()?,
        }
        Ok(Self::new(text.to_owned(), "", 0))
    }

    /// Returns the weakest card with this seed and these weaknesses.
    pub(super) fn weakest(seed: u64, names: &[String]) -> Self {
        let names: String = names.iter().map(|name| format!(",{name}")).collect();
        Self::new(format!("{WEAKEST}{seed}{names}"), "", 0)
    }

    /// Returns the option of `roxe run` that injects the fault.
    pub(super) fn options(&self) -> Option<String> {
        match self.text.strip_prefix(WEAKEST) {
            _ if self.text.is_empty() => None,
            Some(weakest) => Some(format!("--weakest={weakest}")),
            None => Some(format!("--faults={}", self.text)),
        }
    }

    fn new(text: String, site: &str, tier: usize) -> Self {
        Self { duty: duty_after(&text), text, site: site.to_owned(), tier }
    }
}

/// Returns the duty of a program after the faults of `text`; the first fault decides.
fn duty_after(text: &str) -> Duty {
    const MUST_NOTICE: [&str; 3] = ["complete ", "fail ibv_post_", "fail ibv_wr_complete"];
    // After a failed post, a program that continues waits for a completion that the card never
    // generates, or lacks data that it regards as sent.
    let begins = |start: &&str| text.trim_start().starts_with(start);
    if MUST_NOTICE.iter().any(&begins) {
        Duty::MustNotice
    } else if ["fail ", "event "].iter().any(begins) {
        Duty::MayFail
    } else {
        Duty::MustPass
    }
}

/// Verbs of which only the first call at a place fails.
const POLLS: [&str; 2] = ["ibv_poll_cq", "ibv_start_poll"];

/// Ordinal of queue pair 1 in a census; it carries messages of the connection manager.
const GSI: &str = "4294967295";

/// Returns the seed of a fault on the weakest card.
pub(super) fn seed_of(text: &str) -> Option<u64> {
    text.strip_prefix(WEAKEST)?.split(',').next()?.parse().ok()
}

/// Returns true if roxe counts the occasions of this weakness.
pub(super) fn is_occasional(name: &str) -> bool {
    !occasion_of(name).is_empty()
}

/// Returns the name of one occasion of a weakness; empty if its occasions are not counted.
fn occasion_of(name: &str) -> &'static str {
    match name {
        "placement" => "payload",
        "completions" => "late completion",
        "events" => "arming",
        "atomics" => "atomic",
        "acks" => "late acknowledgement",
        "spurious" => "spurious event",
        _ => "",
    }
}

/// Describes the effects of these weaknesses. A name with `=N` or `=N..M` limits the weakness to
/// these occasions.
pub(super) fn describe_weaknesses(names: &[String]) -> String {
    let words = |name: &str| match name {
        "limits" => "the device has the limits of a small card",
        "slots" => "a slot of the send queue is free only once its completion or a later one was polled",
        "placement" => "payload reaches memory in pieces and in any order until the operation completes",
        "completions" => "completions are late, fewer per poll, and in any order between queues",
        "events" => "arming covers only completions that come later",
        "atomics" => "atomics are atomic only among those of the card",
        "receives" => "a message of UC or UD that finds no receive is lost",
        "loss" => "packets are lost and duplicated",
        "acks" => "acknowledgements are late",
        "numbers" => "numbers and keys are random, and used again at once",
        "spurious" => "a completion event may come for a completion that was polled already",
        "reuse" => "numbers of queue pairs are used again at once",
        _ => "an unknown weakness",
    };
    let describe = |name: &String| match name.split_once('=') {
        Some((name, range)) => format!("{name} ({}), needed for {} {range} only", words(name), occasion_of(name)),
        None => format!("{name} ({})", words(name)),
    };
    format!("breaks with {}", names.iter().map(describe).collect::<Vec<_>>().join(" and "))
}

/// Returns the faults to try with a program of this census.
pub(super) fn faults(census: &str, classes: Classes, seeds: u64) -> Vec<Fault> {
    let mut found = Vec::new();
    let mut process = "";
    // Faults of each kind so far.
    let mut counts = BTreeMap::<String, usize>::new();
    for line in census.lines() {
        let words: Vec<_> = line.split('\t').collect();
        let mut tier = |key: String| {
            let count = counts.entry(key).or_default();
            *count += 1;
            *count - 1
        };
        match *words {
            ["process", name, _] => process = name,
            ["call", verb, state, site, nth, stack] if classes.verbs => {
                if let Some(rule) = failing_call(process, verb, state, site, nth) {
                    found.push(Fault::new(rule, stack, tier(format!("{verb} {state}"))));
                }
            }
            ["completion", ordinal, operation, count] if classes.completions => {
                for rule in failing_completions(process, ordinal, operation, count.parse().unwrap_or(1)) {
                    found.push(Fault::new(rule, "", tier(format!("completion {operation}"))));
                }
            }
            ["completion", ordinal, operation, _] if classes.events => {
                for event in ["QP_FATAL", "CQ_ERR"] {
                    let rule = format!("event {event} process={process} qp=#{ordinal} op={operation} nth=1");
                    found.push(Fault::new(rule, "", tier(format!("event {event}"))));
                }
            }
            ["packet", ordinal, opcode, count] if classes.packets => {
                let qp = if ordinal == GSI { "0x1".to_owned() } else { format!("#{ordinal}") };
                for nth in positions(count.parse().unwrap_or(1)) {
                    let rule = format!("drop tx qp={qp} op={opcode} nth={nth} process={process}");
                    found.push(Fault::new(rule, "", tier(format!("packet {opcode}"))));
                }
            }
            _ => {}
        }
        if classes.events {
            for rule in events(process, &words) {
                let key = rule.split(" process").next().unwrap_or_default().to_owned();
                found.push(Fault::new(rule, "", tier(key)));
            }
        }
    }
    found.extend((1..=seeds).map(|seed| Fault::weakest(seed, &[])));
    found.sort_by_key(|fault| fault.tier);
    let mut texts = std::collections::BTreeSet::new();
    found.retain(|fault| texts.insert(fault.text.clone()));
    found
}

fn failing_call(process: &str, verb: &str, state: &str, site: &str, nth: &str) -> Option<String> {
    let verb = Verb::named(verb).filter(|verb| verb.can_fail_in_correct_use)?;
    // The number of polls differs from run to run.
    if POLLS.contains(&verb.name) && nth != "1" {
        return None;
    }
    let state = if state == "-" || state.is_empty() { String::new() } else { format!(" {state}") };
    let site = if site == "-" { String::new() } else { format!(" site={site}") };
    let errno = verb.errnos.first()?.name;
    Some(format!("fail {}{state} errno={errno} process={process}{site} nth={nth}", verb.name))
}

/// Returns the first position of `count`, one in the middle and the last.
fn positions(count: u64) -> Vec<u64> {
    let mut found = vec![1, count.div_ceil(2), count];
    found.dedup();
    found
}

fn failing_completions(process: &str, ordinal: &str, operation: &str, count: u64) -> Vec<String> {
    let statuses: &[&str] = match operation {
        "RECV" => &["WR_FLUSH_ERR"],
        "SEND" => &["RETRY_EXC_ERR"],
        "BIND" | "INVALIDATE" => &["MW_BIND_ERR"],
        _ => &["RETRY_EXC_ERR", "REM_ACCESS_ERR"],
    };
    let rule =
        |status: &str, nth| format!("complete {status} process={process} qp=#{ordinal} op={operation} nth={nth}");
    let first = statuses.iter().map(|status| rule(status, 1));
    let later = positions(count).into_iter().skip(1).map(|nth| rule(statuses[0], nth));
    first.chain(later).collect()
}

/// Returns the events to raise because of a line of the census.
fn events(process: &str, words: &[&str]) -> Vec<String> {
    let rule = |event: &str, more: &str| format!("event {event} process={process}{more}");
    match *words {
        ["occasion", event @ ("PORT_ERR" | "GID_CHANGE" | "DEVICE_FATAL"), _] => vec![rule(event, "")],
        ["call", verb @ ("ibv_post_send" | "ibv_post_recv" | "ibv_modify_qp"), _, _, "1", _] => {
            ["PORT_ERR", "DEVICE_FATAL"]
                .map(|event| format!("event {event} call={verb} process={process} nth=1"))
                .to_vec()
        }
        ["occasion", event @ ("ADDR_ERROR" | "ROUTE_ERROR" | "REJECTED" | "UNREACHABLE"), count] => {
            let nth = positions(count.parse().unwrap_or(1)).into_iter().take(2);
            nth.map(|nth| rule(event, &format!(" nth={nth}"))).collect()
        }
        ["occasion", "DISCONNECTED", _] => {
            ["", " by=5ms"].map(|by| format!("event DISCONNECTED{by} process={process} nth=1")).to_vec()
        }
        _ => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CENSUS: &str = "process\tserver:0000002a\t17\n\
        call\tibv_create_cq\t-\tmain.c:12\t1\tsetup (main.c:12) < main\n\
        call\tibv_destroy_cq\t-\tmain.c:40\t1\tmain\n\
        call\tibv_modify_qp\tRTR\tmain.c:20\t1\tmain\n\
        call\tibv_post_send\t-\tmain.c:30\t1\tmain\n\
        call\tibv_post_send\t-\tmain.c:30\t50\tmain\n\
        call\tibv_poll_cq\t-\tmain.c:31\t70\tmain\n\
        completion\t0\tWRITE\t100\n\
        packet\t0\tWRITE_ONLY\t2\n\
        packet\t4294967295\tSEND_ONLY\t1\n\
        occasion\tREJECTED\t1\n";

    const ALL: Classes = Classes { verbs: true, completions: true, events: true, packets: true };

    fn texts(classes: Classes) -> Vec<String> {
        faults(CENSUS, classes, 0).into_iter().map(|fault| fault.text).collect()
    }

    #[test]
    fn calls_that_can_fail_fail_at_their_site() {
        let verbs = Classes { completions: false, events: false, packets: false, ..ALL };
        assert_eq!(
            texts(verbs),
            [
                "fail ibv_create_cq errno=ENOMEM process=server:0000002a site=main.c:12 nth=1",
                "fail ibv_modify_qp RTR errno=ENOMEM process=server:0000002a site=main.c:20 nth=1",
                "fail ibv_post_send errno=ENOMEM process=server:0000002a site=main.c:30 nth=1",
                "fail ibv_post_send errno=ENOMEM process=server:0000002a site=main.c:30 nth=50",
            ]
        );
    }

    #[test]
    fn every_fault_is_a_rule_of_the_language() {
        let all = texts(ALL);
        assert!(all.len() > 12, "{all:?}");
        for text in all {
            let fault = Fault::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            let planned = faults(CENSUS, ALL, 0).into_iter().find(|planned| planned.text == text).unwrap();
            assert_eq!(fault.duty, planned.duty, "{text}");
        }
    }

    #[test]
    fn first_faults_of_each_kind_come_first() {
        let all = faults(CENSUS, ALL, 2);
        let at = |text: &str| all.iter().position(|fault| fault.text.contains(text)).unwrap();
        assert!(at("nth=50") > at("REJECTED") && at("weakest=2") < at("nth=50"));
        assert_eq!(all.iter().filter(|fault| seed_of(&fault.text).is_some()).count(), 2);
    }

    #[test]
    fn every_weakness_has_a_description() {
        use roxe_base::weakest::Weakness;
        for (name, weakness) in Weakness::all().iter_names() {
            let name = name.to_lowercase();
            assert!(!describe_weaknesses(std::slice::from_ref(&name)).contains("unknown"), "{name}");
            assert_eq!(is_occasional(&name), Weakness::OCCASIONAL.contains(weakness), "{name}");
        }
        let narrow = describe_weaknesses(&["acks=3..5".to_owned(), "loss".to_owned()]);
        let expected = "breaks with acks (acknowledgements are late), needed for late acknowledgement 3..5 only and loss \
                        (packets are lost and duplicated)";
        assert_eq!(narrow, expected);
    }
}
