//! Tests of the command against the output of iproute2 for the kernel's rxe.

use super::*;
use roxe_provider::Answer;

/// Output of the command for the kernel's rxe: lines of `rdma -j`, each below its command.
const KERNEL: &str = include_str!("kernel.txt");

fn answer(card: &Card, lines: &str) -> Vec<Answer> {
    let text = format!("device {} lo\n{lines}", card.name());
    vec![Answer { pid: u32::MAX, ifindex: card.device.ifindex(), text, is_whole: true, ..Answer::default() }]
}

/// Returns the device of the loopback interface.
fn card() -> Card {
    cards(0).unwrap().remove(0)
}

const QPS: &str = "\
qp qpn=17 type=RC state=RTS rqpn=18 rq_psn=5 sq_psn=6 migration=MIGRATED pd=3 srq=1 sent_bytes=9 rcvd_bytes=8
qp qpn=18 type=UD state=RTS rqpn=0 rq_psn=0 sq_psn=4 migration=MIGRATED pd=3
qp qpn=19 type=XRC_RECV state=INIT rqpn=0 rq_psn=0 sq_psn=4 migration=ARMED pd=3
";

/// Keys of the first object of a user's process that the command lists for the kernel's rxe.
fn keys_of_kernel(command: &str) -> Vec<&str> {
    let line = KERNEL.lines().skip_while(|line| *line != command).nth(1).unwrap();
    let object = line.split("},{").find(|object| object.contains("\"pid\":") || !line.contains("\"pid\":")).unwrap();
    let ends = object.match_indices("\":").map(|(end, _)| &object[..end]);
    ends.filter_map(|before| Some(before.rsplit_once('"')?.1)).collect()
}

#[test]
fn keys_and_their_order_are_those_of_the_kernel() {
    let card = card();
    let objects = |kind: ObjectKind, line: &str| {
        let answers = answer(&card, &format!("{} {line}\n", kind.name()));
        card.objects(kind, &answers, &answer(&card, QPS)).remove(0)
    };
    let qp = QPS.lines().next().unwrap().trim_start_matches("qp ");
    let cases = [
        ("rdma -j link", card.link(false)),
        ("rdma -jd link", card.link(true)),
        ("rdma -jd dev", card.dev(true)),
        ("rdma -j res", card.summary(&[])),
        ("rdma -j res show qp", objects(ObjectKind::Qp, qp)),
        ("rdma -j res show cq", objects(ObjectKind::Cq, "n=1 cqe=255 users=2 ctx=1")),
        ("rdma -j res show mr", objects(ObjectKind::Mr, "n=1 rkey=0x2bb lkey=0x2bb len=4096 pd=3")),
        ("rdma -j res show pd", objects(ObjectKind::Pd, "n=3 users=2 ctx=1")),
        ("rdma -j res show cm_id", objects(ObjectKind::CmId, CM_ID)),
        ("rdma -j res show ctx", objects(ObjectKind::Ctx, "n=1")),
        ("rdma -j res show srq", objects(ObjectKind::Srq, "n=1 type=BASIC pd=3")),
    ];
    for (command, record) in cases {
        // rxe names no firmware, and details that the kernel leaves out are not missed.
        let own: Vec<&str> = record.keys().into_iter().filter(|key| !matches!(*key, "fw" | "caps")).collect();
        let theirs: Vec<&str> = keys_of_kernel(command).into_iter().filter(|key| *key != "caps").collect();
        assert_eq!(own, theirs, "{command}");
    }
}

const CM_ID: &str = "n=4 qpn=19 type=RC state=CONNECT ps=TCP src=10.0.0.1:7174 dst=10.0.0.2:37238";

#[test]
fn objects_are_shown_as_text_of_iproute2() {
    let card = card();
    let text = |kind: ObjectKind, lines: &str| -> Vec<String> {
        let found = card.objects(kind, &answer(&card, lines), &answer(&card, QPS));
        found.iter().map(Record::text).collect()
    };
    assert_eq!(
        text(ObjectKind::Qp, QPS),
        [
            "link roxe0/1 lqpn 17 rqpn 18 type RC state RTS rq-psn 5 sq-psn 6 path-mig-state MIGRATED pdn 3 pid \
             4294967295 comm  ",
            "link roxe0/1 lqpn 18 type UD state RTS sq-psn 4 pdn 3 pid 4294967295 comm  ",
            "link roxe0/1 lqpn 19 type XRC_TGT state INIT sq-psn 4 path-mig-state ARMED pdn 3 pid 4294967295 comm  ",
        ]
    );
    assert_eq!(
        text(ObjectKind::Mr, "mr n=1 rkey=0x0 lkey=0x2bb len=16 pd=3\n"),
        ["dev roxe0 mrn 1 rkey 0x0 lkey 0x2bb mrlen 16 pdn 3 pid 4294967295 comm  "]
    );
    assert_eq!(
        text(ObjectKind::Srq, "srq n=1 type=TM pd=3 cq=2\nsrq n=2 type=BASIC pd=3\n"),
        [
            "dev roxe0 srqn 1 type TM lqpn 17 pdn 3 cqn 2 pid 4294967295 comm  ",
            "dev roxe0 srqn 2 type BASIC pdn 3 pid 4294967295 comm  ",
        ]
    );
    let counters = card.qp_counters(&answer(&card, QPS));
    let expected = "link roxe0/1 cntn 17 qp-type RC pid 4294967295 comm  \n    sent_bytes 9 \n    rcvd_bytes 8 ";
    assert!(counters[0].text().starts_with(expected), "{}", counters[0].text());
}

#[test]
fn summary_adds_up_processes_of_this_device() {
    let card = card();
    let mut answers = answer(&card, "count qp 2\ncount mr 3\n");
    answers.extend(answer(&card, "count qp 5\n"));
    answers.push(Answer { ifindex: u32::MAX, ..answers[0].clone() });
    assert_eq!(card.summary(&answers).text(), "0: roxe0: pd 0 cq 0 qp 7 cm_id 0 mr 3 ctx 0 srq 0 ");
}

#[test]
fn filters_take_values_ranges_and_lists() {
    let card = card();
    let chosen = |kind: ObjectKind, lines: &str, words: &[&str]| {
        let (_, filters) = KeyFilter::parse(words, allowed(kind)).unwrap();
        let found = card.objects(kind, &answer(&card, lines), &answer(&card, QPS));
        found.iter().filter(|record| filters.iter().all(|filter| filter.takes(record))).count()
    };
    let qps = |words: &[&str]| chosen(ObjectKind::Qp, QPS, words);
    assert_eq!([qps(&[]), qps(&["lqpn", "17"]), qps(&["lqpn", "18-19"]), qps(&["lqpn", "17,19"])], [3, 1, 2, 2]);
    assert_eq!([qps(&["type", "rc,ud"]), qps(&["state", "INIT"]), qps(&["type", "UC"])], [2, 1, 0]);
    assert_eq!([qps(&["type", "RC", "lqpn", "18"]), qps(&["pid", "1"])], [0, 0]);
    let ids = |words: &[&str]| chosen(ObjectKind::CmId, &format!("cm_id {CM_ID}\n"), words);
    assert_eq!([ids(&["src-port", "7000-8000"]), ids(&["dst-addr", "10.0.0.2"]), ids(&["dst-addr", "::1"])], [1, 1, 0]);
    let srqs = |words: &[&str]| chosen(ObjectKind::Srq, "srq n=1 type=BASIC pd=3\n", words);
    assert_eq!([srqs(&["lqpn", "10-20"]), srqs(&["lqpn", "18"])], [1, 0]);
    assert!(KeyFilter::parse(&["lqpn"], &["lqpn"]).unwrap_err().to_string().contains("no value"));
    assert!(KeyFilter::parse(&["odd", "1"], &["lqpn"]).unwrap_err().to_string().contains("there are: lqpn"));
    assert_eq!(KeyFilter::parse(&["link", "roxe0/1"], &[]).unwrap().0, Some("roxe0/1"));
}

#[test]
fn options_are_letters_and_long_words() {
    let parse = |words: &[&'static str]| {
        let (options, rest) = RdmaOptions::parse(words).unwrap();
        (options, rest.join(" "))
    };
    let (options, rest) = parse(&["-p", "--details", "link", "show", "-j", "--", "-x"]);
    assert_eq!((options.json, options.pretty, options.details, rest.as_str()), (true, true, true, "link show -x"));
    assert_eq!(parse(&["-b", "file"]).0.batch, Some("file"));
    assert_eq!(parse(&["-fbfile"]).0, RdmaOptions { force: true, batch: Some("file"), ..RdmaOptions::default() });
    for wrong in [&["-x"][..], &["--jsn"], &["-b"], &["-r"]] {
        assert!(RdmaOptions::parse(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn commands_are_abbreviated_as_by_iproute2() {
    let objects = ["help", "dev", "link", "resource", "system", "statistic", "monitor"];
    let chosen = |word| choose(word, &objects);
    assert_eq!(
        [chosen("res"), chosen("s"), chosen("st"), chosen("l")],
        [Some("resource"), Some("system"), Some("statistic"), Some("link")]
    );
    assert_eq!((chosen("links"), chosen("")), (None, None));
}

#[test]
fn called_name_selects_the_command() {
    let is = |name: &str| is_called(Some(&name.into()));
    assert!(is("rdma") && is("/usr/bin/rdma") && is("../bin/rdma"));
    assert!(!is("roxe") && !is("/opt/rdma/roxe") && !is_called(None));
}
