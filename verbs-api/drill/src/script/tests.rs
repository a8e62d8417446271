//! Valid and invalid scripts.

use super::*;

fn error(text: &str) -> String {
    Script::parse("a.drill", &format!("title t\n{text}")).unwrap_err().to_string()
}

#[test]
fn script_has_title_clauses_and_a_case_for_each_loop_turn() {
    let text = "title Zero bytes # a comment\nclause A-B, C-D\nfor mtu in 256 512\nfor op, n in SEND_ONLY 0; SEND_LAST 1\n\
                send {op} psn=n len=mtu\n";
    let script = Script::parse("a.drill", text).unwrap();
    assert_eq!((script.title(), script.clauses()), ("Zero bytes", &["A-B".to_owned(), "C-D".to_owned()][..]));
    let cases: Vec<_> = script.cases().iter().map(Case::to_string).collect();
    assert_eq!(cases[..2], ["mtu=256 op=SEND_ONLY n=0", "mtu=256 op=SEND_LAST n=1"]);
    assert_eq!(cases.len(), 4);
    assert_eq!(script.cases()[0].names.get("mtu"), Some(&256));
    assert!(matches!(&script.cases()[1].lines[0].step, Step::Send(spec) if spec.opcode == 2));
}

#[test]
fn quoted_loop_value_has_several_words() {
    let script = Script::parse("a", "title t\nfor a in \"SEND_ONLY len=4\" READ_REQUEST\nsend {a} psn=1").unwrap();
    let cases: Vec<_> = script.cases().iter().map(|case| case.lines[0].text.as_str()).collect();
    assert_eq!(cases, ["send SEND_ONLY len=4 psn=1", "send READ_REQUEST psn=1"]);
}

#[test]
fn message_has_the_fields_of_packet_and_mad() {
    let script = Script::parse("a", "title t\nsend REP local_id=1 start_psn=2 qkey=3 psn=4 len=196\nexpect DREQ as=d");
    let script = script.unwrap();
    let [Step::Send(spec), Step::Expect(expectation)] = [0, 1].map(|at| &script.cases()[0].lines[at].step) else {
        panic!("{script:?}")
    };
    assert_eq!((spec.opcode, spec.message.map(|message| message.name)), (0x64, Some("REP")));
    assert_eq!(expectation.spec.message.map(|message| message.attribute), Some(0x15));
    assert_eq!((expectation.spec.prefix.as_deref(), expectation.skips), (Some("d"), steps::Skips::Mra));
}

#[test]
fn repeat_block_holds_lines_up_to_its_end() {
    let script =
        Script::parse("a.drill", "title t\nrepeat 3\nwait 1ms\nrepeat 2\nwait 2ms\nend\nend\nwait 3ms").unwrap();
    let lines = &script.cases()[0].lines;
    let Step::Repeat(_, inside) = &lines[0].step else { panic!("{lines:?}") };
    assert_eq!((lines.len(), inside.len(), inside[1].number), (2, 2, 4));
}

#[test]
fn loops_that_unroll_to_too_much_are_refused() {
    let many = (0..4096).map(|turn| format!(" {turn}")).collect::<String>();
    let lines = "wait {n}ms\n".repeat(100);
    let text = error(&format!("for n in{many}\n{lines}"));
    assert!(text.contains("with its loops unrolled the script is longer than 16 MiB"), "{text}");
    let text = error(&format!("for n in {}\n", "x".repeat(1025)));
    assert!(text.contains("a value of a loop has at most 1024 bytes"), "{text}");
    let text = error(&format!("for n in {}\nwait {}\n", "x".repeat(1024), "{n}".repeat(100)));
    assert!(text.contains("a line has at most 65536 bytes"), "{text}");
    let fits = format!("title t\nfor n in{many}\n{}", "wait {n}ms\n".repeat(30));
    assert_eq!(Script::parse("s", &fits).unwrap().cases().len(), 4096);
}

#[test]
fn invalid_script_is_reported_with_its_line() {
    for (text, what) in [
        ("sned SEND_ONLY", "a.drill:2: there is no step `sned`\n    sned SEND_ONLY"),
        ("\n\nsend SEND_MOST", "a.drill:4: RC has no opcode `SEND_MOST`\n    send SEND_MOST"),
        ("send SEND_ONLY psn=x+", "a.drill:2: a number is missing\n    send SEND_ONLY psn=x+"),
        ("send SEND_ONLY pns=1", "a.drill:2: `pns` is not a field of SEND_ONLY\n    send SEND_ONLY pns=1"),
        ("expect NAK within 1ms", "a.drill:2: the code of the NAK is missing\n    expect NAK within 1ms"),
        ("expect NAK no_reason", "a.drill:2: there is no NAK `no_reason`\n    expect NAK no_reason"),
        ("expect ACK within", "a.drill:2: a time after `within` is missing\n    expect ACK within"),
        ("expect ACK since=a", "a.drill:2: since= needs `after TIME`\n    expect ACK since=a"),
        ("count CNP", "a.drill:2: `for TIME` is missing\n    count CNP"),
        ("count CNP range=3 for 1ms", "a.drill:2: a range is `range=MIN..MAX`\n    count CNP range=3 for 1ms"),
        ("figure wait ms 3", "a.drill:2: `ms` is not a unit of a figure; write time or number\n    figure wait ms 3"),
        ("peer dance q", "a.drill:2: the peer cannot `dance`\n    peer dance q"),
        ("peer reg m access=lots", "a.drill:2: there is no right `lots`\n    peer reg m access=lots"),
        ("peer reg m sise=3", "a.drill:2: `sise=3` is not an argument of this step\n    peer reg m sise=3"),
        ("send SEND_ONLY hex=abc", "a.drill:2: hex= needs pairs of hexadecimal digits\n    send SEND_ONLY hex=abc"),
        ("repeat 3\nwait 1ms", "a.drill:2: this block has no end\n    repeat 3"),
        ("end", "a.drill:2: there is no open block\n    end"),
        ("for mtu 256", "a.drill:2: a loop is `for NAME in VALUE...`\n    for mtu 256"),
        ("for a, b in 1 2; 3", "a.drill:2: each turn of this loop has 2 values\n    for a, b in 1 2; 3"),
        ("service RD\nsend SEND_ONLY", "a.drill:3: there is no service `RD`\n    send SEND_ONLY"),
        ("send REQ local_idd=1", "a.drill:2: `local_idd` is not a field of REQ\n    send REQ local_idd=1"),
        ("send REQ va=1", "a.drill:2: `va` is not a field of REQ\n    send REQ va=1"),
        ("send REQ _=1", "a.drill:2: `_` is not a field of REQ\n    send REQ _=1"),
        ("peer accept c", "a.drill:2: qp= is missing\n    peer accept c"),
        ("peer request c", "a.drill:2: of= is missing\n    peer request c"),
        ("peer join q here", "a.drill:2: `here` is not an address\n    peer join q here"),
        ("peer bind q w mr=m id=1", "a.drill:2: length= is missing\n    peer bind q w mr=m id=1"),
        ("peer listen l space=IB", "a.drill:2: unknown `IB`; use one of TCP, UDP\n    peer listen l space=IB"),
        ("family ipx", "a.drill:2: a family is ipv4, ipv6 or any\n    family ipx"),
    ] {
        assert_eq!(error(text), what);
    }
    assert_eq!(Script::parse("b", "wait 1ms").unwrap_err().to_string(), "b:1: a script begins with its title\n    ");
}
