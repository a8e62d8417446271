//! Text to rules and back.

use super::*;
use core::time::Duration;
use proptest::prelude::*;

#[test]
fn rules_roundtrip_through_text() {
    for text in [
        "none",
        "drop",
        "drop 3%",
        "duplicate 1% rx",
        "duplicate copies=3 by=2ms tx",
        "reorder 2%",
        "reorder by=250us",
        "delay by=5ms tx op=ACK",
        "delay by=0s..1s",
        "delay by=1ms..1500us",
        "corrupt payload 0.1%",
        "corrupt header nth=7",
        "corrupt icrc op=READ_RESPONSE_LAST",
        "drop tx qp=#0 op=SEND_LAST nth=3",
        "drop rx qp=0x11 nth=3,5,10..20,30..",
        "drop tx psn=0x10..0x20,0xfffffe..0x3 msg=4",
        "ecn 0.000001%; rnr rx msg=2 times=3",
        "drop rx peer=10.77.0.11; drop tx peer=fe80::1",
        "drop op=REQUEST,READ_RESPONSE,RNR_NAK,ACK,CNP",
        "drop at=0s..; drop 3% rx at=1500ms..2s service=RC",
        "drop 1% service=RC,XRC; delay by=2ms service=UC,UD op=SEND",
        "seed=42; drop 12.5%",
        "seed=42; none",
        "drop tx nth=2 process=ib_write_bw:0123abcd",
        "fail ibv_reg_mr errno=ENOMEM nth=3",
        "fail ibv_modify_qp RTR errno=ETIMEDOUT 5% process=server",
        "fail ibv_poll_cq errno=ENOMEM illegal times=1",
        "slow ibv_post_send by=1ms..2ms at=2s..3s",
        "slow rdma_create_qp by=1s site=main.c:42",
        "complete RETRY_EXC_ERR qp=#0 op=SEND,RECV wr_id=0,7.. nth=4",
        "event PORT_ERR call=ibv_post_send by=5ms nth=2",
        "event PORT_ERR at=2s..; event QP_FATAL op=SEND nth=1; event REJECTED",
    ] {
        assert_eq!(rules(text).to_string(), text);
    }
}

#[test]
fn alternative_spellings_parse_to_equal_rules() {
    for (text, canonical) in [
        ("  drop\t3.10%  ;;\n ; ecn\n", "drop 3.1%; ecn"),
        ("drop nth=3 tx 03%", "drop 3% tx nth=3"),
        ("drop from=10.77.0.11", "drop rx peer=10.77.0.11"),
        ("drop rx from=::ffff:10.77.0.11", "drop rx peer=10.77.0.11"),
        ("drop to=10.77.0.11 tx", "drop tx peer=10.77.0.11"),
        ("drop qp=17", "drop qp=0x11"),
        ("drop psn=16..0x20,5", "drop psn=0x10..0x20,0x5"),
        ("drop nth=0xa", "drop nth=10"),
        ("reorder by=1000us", "reorder"),
        ("reorder by=1ms..1ms", "reorder"),
        ("duplicate copies=1", "duplicate"),
        ("delay by=1000ms", "delay by=1s"),
        ("rnr", "rnr rx"),
        ("drop op=send_last,Send", "drop op=SEND"),
        ("drop op=NAK,RNR_NAK", "drop op=NAK"),
        ("drop op=ACK service=xrc,rc,XRC", "drop service=RC,XRC op=ACK"),
        ("drop op=COMPARE_SWAP,FETCH_ADD,ATOMIC_ACK", "drop op=ATOMIC,ATOMIC_ACK"),
        ("ecn; seed=0x10", "seed=16; ecn"),
        ("fail reg_mr", "fail ibv_reg_mr errno=ENOMEM"),
        ("fail get_cm_event", "fail rdma_get_cm_event errno=EINTR"),
        ("fail create_qp", "fail ibv_create_qp errno=ENOMEM"),
        ("complete REM_OP_ERR op=recv,send", "complete REM_OP_ERR op=SEND,RECV"),
        ("fail reg_mr; drop", "drop; fail ibv_reg_mr errno=ENOMEM"),
    ] {
        assert_eq!(rules(text).to_string(), canonical, "{text}");
    }
}

#[test]
fn errors_name_the_rule_the_word_and_the_allowed_words() {
    for (text, error) in [
        (
            "drop; dorp 3%",
            "fault rule 2: \"dorp\" is not an action; known are drop, duplicate, delay, reorder, corrupt, ecn, rnr, nak, cnp, fail, slow, complete, event, seed=N, and none",
        ),
        (
            "drop somtimes",
            "fault rule 1: \"somtimes\" is not a word of a packet rule; known are a rate like 0.5%, tx, rx, qp=, peer=, from=, to=, at=, service=, op=, psn=, msg=, nth=, times=, process=, by= and copies=",
        ),
        (
            "drop tx=1",
            "fault rule 1: \"tx=1\" is not a word of a packet rule; known are a rate like 0.5%, tx, rx, qp=, peer=, from=, to=, at=, service=, op=, psn=, msg=, nth=, times=, process=, by= and copies=",
        ),
        ("corrupt", "fault rule 1: corrupt \"\": the part must be payload, header or icrc"),
        (
            "nak busy",
            "fault rule 1: nak \"busy\": the NAK must be psn_sequence, invalid_request, remote_access, remote_operation, invalid_rd, or a syndrome like 0x2c",
        ),
        ("corrupt body", "fault rule 1: corrupt \"body\": the part must be payload, header or icrc"),
        ("drop 3% 4%", "fault rule 1: \"4%\" sets a value that an earlier word has set"),
        ("drop nth=1 nth=1", "fault rule 1: \"nth=1\" sets a value that an earlier word has set"),
        (
            "drop 100.1%",
            "fault rule 1: \"100.1%\" is not a rate; write 3% or 0.1%; the maximum is 100%, with up to six decimals",
        ),
        ("drop tx rx", "fault rule 1: \"rx\" contradicts tx; for both directions write neither tx nor rx"),
        (
            "drop tx from=1.2.3.4",
            "fault rule 1: \"from=1.2.3.4\" contradicts tx; for both directions write neither tx nor rx",
        ),
        ("drop peer=host", "fault rule 1: \"host\" is not an IPv4 or IPv6 address"),
        ("drop service=RC,RD", "fault rule 1: \"RD\" is not a service; known are RC, UC, UD and XRC"),
        ("drop qp=0x1000000", "fault rule 1: \"0x1000000\" is not in 0..16777215"),
        ("drop qp=#-1", "fault rule 1: \"-1\" is not a number; write 17 or 0x11"),
        ("drop psn=5..", "fault rule 1: \"\" is not a number; write 17 or 0x11"),
        ("drop msg=0", "fault rule 1: \"0\" is not in 1..18446744073709551615"),
        ("drop nth=5..3", "fault rule 1: 5..3 ends before it starts"),
        ("drop times=0", "fault rule 1: \"0\" is not in 1..4294967295"),
        ("delay", "fault rule 1: delay needs by=TIME, for example by=5ms"),
        ("delay by=5", "fault rule 1: \"5\" is not a time; write 250us, 5ms or 1s; the maximum is one hour"),
        ("delay by=3601s", "fault rule 1: \"3601s\" is not a time; write 250us, 5ms or 1s; the maximum is one hour"),
        (
            "delay by=0ms",
            "fault rule 1: \"0ms\" is not a delay; it must exceed 0, and a range must start with the shorter time",
        ),
        (
            "delay by=2ms..1ms",
            "fault rule 1: \"2ms..1ms\" is not a delay; it must exceed 0, and a range must start with the shorter time",
        ),
        (
            "reorder by=1ms..2ms",
            "fault rule 1: reorder needs one time, not a range; only delay and duplicate accept a range",
        ),
        ("drop at=1s", "fault rule 1: \"1s\" is not a time range; write 2s..3s or 2s.."),
        ("drop at=2s..2s", "fault rule 1: \"2s..2s\" ends before it begins"),
        ("drop by=1ms", "fault rule 1: by= is valid only for delay, reorder and duplicate"),
        ("drop copies=2", "fault rule 1: copies= is valid only for duplicate"),
        ("duplicate copies=17", "fault rule 1: \"17\" is not in 1..16"),
        ("rnr tx", "fault rule 1: rnr applies only to received packets: write rx or no direction"),
        (
            "fail mailman",
            "fault rule 1: \"mailman\" is not a call with fault rules; examples are reg_mr, post_send and rdma_connect",
        ),
        ("fail reg_mr RTR", "fault rule 1: a state is valid only for ibv_modify_qp"),
        (
            "fail reg_mr errno=ENUFF",
            "fault rule 1: \"ENUFF\" is not the name of an error; write it as errno.h does, for example ENOMEM",
        ),
        (
            "fail post_send errno=ETIMEDOUT",
            "fault rule 1: ibv_post_send does not fail with ETIMEDOUT, but with ENOMEM, EINVAL, EFAULT; or write illegal",
        ),
        ("fail reg_mr by=5ms", "fault rule 1: by= is valid only for slow and some events, not for fail"),
        ("slow reg_mr", "fault rule 1: slow needs by=TIME, for example by=5ms"),
        ("slow reg_mr by=1s errno=EIO", "fault rule 1: errno= and illegal are valid only for fail"),
        ("fail reg_mr qp=#0", "fault rule 1: qp=, op= and wr_id= are valid only for completions"),
        ("fail reg_mr call=poll_cq", "fault rule 1: call= is valid only for events"),
        ("complete GENERAL_ERR site=main", "fault rule 1: site= is valid only for calls"),
        (
            "event REJECTED call=rdma_connect",
            "fault rule 1: call= is valid only for the events PORT_ERR, GID_CHANGE and DEVICE_FATAL",
        ),
        ("event GID_CHANGE by=1ms", "fault rule 1: for events, by= is valid only for PORT_ERR and DISCONNECTED"),
        ("fail reg_mr process=", "fault rule 1: \"process=\" has no value"),
        ("seed=x", "fault rule 1: \"x\" is not a number; write 17 or 0x11"),
        ("seed=1;seed=2", "fault rule 2: \"seed=2\" sets a value that an earlier word has set"),
    ] {
        assert_eq!(text.parse::<Rules>().expect_err(text).to_string(), error, "{text}");
    }
    let error = "drop op=SEND,PING".parse::<Rule>().expect_err("PING is not an opcode").to_string();
    assert!(
        error.starts_with("fault rule 1: \"PING\" is not an opcode; known are REQUEST, RESPONSE, SEND, "),
        "{error}"
    );
}

#[test]
fn errors_quote_short_escaped_words() {
    let word = format!("\u{1b}[2J{}", "ä".repeat(1000));
    let error = word.parse::<Rules>().expect_err("the word is not an action").to_string();
    let quoted = format!("fault rule 1: \"\\u{{1b}}[2J{}\"... is not an action;", "ä".repeat(36));
    assert!(error.starts_with(&quoted), "{error}");
}

#[test]
fn rates_have_six_decimals() {
    for (text, micro) in [
        ("0%", 0),
        ("0.000001%", 1),
        ("3%", 3_000_000),
        ("0.1%", 100_000),
        ("99.999999%", 99_999_999),
        ("100%", 100_000_000),
    ] {
        let rule: Rule = format!("drop {text}").parse().expect(text);
        assert_eq!(rule.rate.map(Rate::micro_percent), Some(micro), "{text}");
    }
    for text in ["%", ".5%", "5.%", "-1%", "1e1%", "0.0000001%", "100.000001%", "1000000%", "9999999%", "+1%", "١%"] {
        assert!(format!("drop {text}").parse::<Rule>().is_err(), "{text}");
    }
    assert_eq!(Rate::from_micro_percent(100_000_001), None);
}

#[test]
fn text_rules_and_lists_are_bounded() {
    let many = |count: usize| vec!["ecn"; count].join(";");
    assert_eq!(rules(&many(Rules::MAX)).list().len(), Rules::MAX);
    let error = many(Rules::MAX + 1).parse::<Rules>().expect_err("too many");
    assert_eq!(error.to_string(), "fault rules: more than 256 rules");
    let long = " ".repeat(65 << 10).parse::<Rules>().expect_err("too long");
    assert_eq!(long.to_string(), "fault rules: 66560 bytes of text exceed the maximum of 65536");
    let list = |count: usize| format!("drop nth={}", vec!["5"; count].join(","));
    assert!(list(Spans::MAX).parse::<Rule>().is_ok());
    let error = list(Spans::MAX + 1).parse::<Rule>().expect_err("too many").to_string();
    assert!(error.ends_with("has more than the maximum of 64 elements"), "{error}");
}

#[test]
fn opcode_names_roundtrip() {
    for name in OpSet::names() {
        let set = OpSet::named(&name.to_lowercase()).expect(name);
        assert_eq!(set.to_string(), name);
        assert!(!set.is_empty());
    }
    assert_eq!(OpSet::named("RC SEND_ONLY"), None);
}

fn times() -> impl Strategy<Value = Duration> {
    prop_oneof![0u64..5000, (0u64..4000).prop_map(|ms| ms * 1000), (0u64..3600).prop_map(|s| s * 1_000_000)]
        .prop_map(Duration::from_micros)
}

fn hold() -> impl Strategy<Value = Hold> {
    (times(), times()).prop_filter_map("some time", |(a, b)| {
        let hold = Hold { min: a.min(b), max: a.max(b) };
        (!hold.max.is_zero()).then_some(hold)
    })
}

fn actions() -> impl Strategy<Value = Action> {
    let no_hold = Hold::exactly(Duration::ZERO);
    let part = prop_oneof![Just(Part::Payload), Just(Part::Header), Just(Part::Icrc)];
    prop_oneof![
        Just(Action::Drop),
        Just(Action::Ecn),
        Just(Action::Rnr),
        (1u8..=16, prop_oneof![Just(no_hold), hold()]).prop_map(|(copies, after)| Action::Duplicate { copies, after }),
        hold().prop_map(Action::Delay),
        hold().prop_map(|hold| Action::Reorder(hold.max)),
        part.prop_map(Action::Corrupt),
        Just(Action::Forge(Forged::Cnp)),
        any::<u8>().prop_map(|byte| Action::Forge(Forged::Nak(Syndrome::from_u8(byte)))),
    ]
}

fn ranges(last: u64) -> impl Strategy<Value = Vec<(u64, u64)>> {
    let range = prop_oneof![
        (1..=last).prop_map(|n| (n, n)),
        (1..=last).prop_map(|n| (n, u64::MAX)),
        (1..=last, 1..=last).prop_map(|(a, b)| (a.min(b), a.max(b))),
    ];
    prop::collection::vec(range, 1..=Spans::MAX)
}

fn spans() -> impl Strategy<Value = Option<Spans>> {
    prop::option::of(prop_oneof![ranges(50), ranges(u64::MAX)].prop_map(|list| Spans::new(list).expect("legal")))
}

fn psns() -> impl Strategy<Value = Option<PsnSpans>> {
    let psn = || any::<u32>().prop_map(Psn::new);
    prop::option::of(prop::collection::vec((psn(), psn()), 1..=4).prop_map(|list| PsnSpans::new(list).expect("legal")))
}

fn op_sets() -> impl Strategy<Value = Option<OpSet>> {
    let names: Vec<_> = OpSet::names().collect();
    let list = prop::collection::vec(prop::sample::select(names), 1..6);
    let union = |names: Vec<&str>| names.into_iter().filter_map(OpSet::named).reduce(OpSet::union).expect("not empty");
    prop::option::of(list.prop_map(union))
}

fn service_sets() -> impl Strategy<Value = Option<ServiceSet>> {
    let list = prop::collection::vec(prop::sample::select(vec!["RC", "UC", "UD", "XRC"]), 1..4);
    let union = |names: Vec<&str>| names.into_iter().filter_map(ServiceSet::named).reduce(ServiceSet::union);
    prop::option::of(list.prop_map(move |names| union(names).expect("not empty")))
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let dir = prop::option::of(prop_oneof![Just(Direction::Tx), Just(Direction::Rx)]);
    let rate = prop::option::of((0u32..=100_000_000).prop_map(|micro| Rate::from_micro_percent(micro).expect("legal")));
    let qp = prop::option::of(prop_oneof![
        any::<u32>().prop_map(QpSelector::Ordinal),
        any::<u32>().prop_map(|qpn| QpSelector::Number(Qpn::new(qpn)))
    ]);
    let window = (0..=3_599_000_000u64, prop::option::of(1..=1_000_000u64)).prop_map(|(from, length)| {
        let until = length.map(|length| Duration::from_micros(from + length));
        Window { from: Duration::from_micros(from), until }
    });
    let peer = prop::option::of(any::<[u8; 16]>().prop_map(Gid));
    let filters = (dir, rate, qp, peer, service_sets(), prop::option::of(window));
    let times = prop::option::of(1u32..);
    (actions(), filters, op_sets(), psns(), spans(), spans(), times).prop_map(
        |(action, (dir, rate, qp, peer, services, at), ops, psn, msg, nth, times)| {
            let dir = if action == Action::Rnr { Some(Direction::Rx) } else { dir };
            Rule { action, rate, dir, qp, peer, at, services, ops, psn, msg, nth, times, process: None }
        },
    )
}

/// Generates text from fragments of rules.
fn near_rules() -> impl Strategy<Value = String> {
    let words = [
        "drop",
        "duplicate",
        "delay",
        "reorder",
        "corrupt",
        "payload",
        "ecn",
        "rnr",
        "seed=",
        "3%",
        ".%",
        "tx",
        "rx",
        "qp=",
        "#",
        "peer=",
        "from=",
        "at=",
        "service=",
        "XRC",
        "op=",
        "SEND",
        ",",
        "psn=",
        "0x",
        "..",
        "msg=",
        "nth=",
        "times=",
        "by=",
        "1ms",
        "copies=",
        "fail",
        "complete",
        "event",
        "reg_mr",
        "RETRY_EXC_ERR",
        "PORT_ERR",
        "errno=",
        "process=",
        "5",
        "18446744073709551616",
        ";",
        "\n",
        " ",
        "=",
        "%",
        "é",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..24).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn printed_rules_parse_to_equal_rules(seed in any::<Option<u64>>(), list in prop::collection::vec(any_rule(), 0..4)) {
        let rules = Rules::new(seed, list);
        let text = rules.to_string();
        prop_assert_eq!(text.parse::<Rules>(), Ok(rules), "{}", text);
    }

    #[test]
    fn any_text_parses_or_gives_a_one_line_error(text in prop_oneof![near_rules(), ".{0,80}"]) {
        match text.parse::<Rules>() {
            Ok(rules) => prop_assert_eq!(rules.to_string().parse::<Rules>(), Ok(rules)),
            Err(error) => {
                let message = error.to_string();
                prop_assert!(message.len() < 1000 && !message.contains(char::is_control), "{}", message);
            }
        }
    }
}
