//! The rules: names, severities, summaries and sources. Names are interface: suppressions, reports
//! and tests use them.

use std::fmt;

/// Severity of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Correct use that costs time or safety.
    Advice,
    /// Wrong on some card, or under some timing.
    Warning,
    /// Wrong on every card.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Advice => "advice",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

macro_rules! rules {
    ($($variant:ident $name:literal $severity:ident $summary:literal $source:literal;)+) => {
        /// A rule of the checker.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Rule {
            $(#[doc = $summary] $variant,)+
        }

        impl Rule {
            /// All rules, in the order of the manual.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns the name in reports, selections and suppressions.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Returns the severity of the rule.
            pub const fn severity(self) -> Severity {
                match self { $(Self::$variant => Severity::$severity,)+ }
            }

            /// Returns the mistake that the rule finds, in one sentence.
            pub const fn summary(self) -> &'static str {
                match self { $(Self::$variant => $summary,)+ }
            }

            /// Returns the document that forbids the mistake.
            pub const fn source(self) -> &'static str {
                match self { $(Self::$variant => $source,)+ }
            }
        }
    };
}

rules! {
    BufferChangedInFlight "buffer-changed-in-flight" Error
        "The bytes of a send changed between the call that posted it and its completion."
        "man ibv_post_send: the buffers may only be used after the request is fully executed";
    BufferOverlapInFlight "buffer-overlap-in-flight" Warning
        "Two outstanding requests use the same bytes, and the card writes them for one of the two."
        "man ibv_post_send, man ibv_post_recv: a buffer is the card's until its completion was polled";
    ReceiveChangedEarly "receive-changed-early" Warning
        "The program wrote into a receive or the destination of an RDMA READ before its completion."
        "man ibv_post_recv: the buffers may only be used after the request is fully executed";
    MemoryGoneInFlight "memory-gone-in-flight" Error
        "Memory was deregistered or unmapped while an outstanding request used it."
        "man ibv_reg_mr; IBA 10.6.7.5: deregister only what no outstanding request uses";
    RemoteOverlap "remote-overlap" Warning
        "Two remote operations are outstanding on the same bytes, one of them writes, and no rule orders them."
        "IBA 10.8.3.3, man ibv_post_send: order is kept within one queue pair, after READs and atomics with IBV_SEND_FENCE";
    AtomicMixed "atomic-mixed" Warning
        "The processor changed the word of a remote atomic while the atomic was outstanding."
        "man ibv_query_device: with IBV_ATOMIC_HCA atomics are atomic among themselves, not towards the processor";
    KeyConfused "key-confused" Error
        "A remote key was used as a local one, or the other way round."
        "man ibv_reg_mr: lkey is for sg_list, rkey for peers";
    KeyOfOtherPd "key-of-other-pd" Error
        "The key is good, but its protection domain is not that of the queue pair."
        "man ibv_alloc_pd; IBA 10.2.3: memory and queue pairs work together in one protection domain";
    KeyStale "key-stale" Error
        "The key is that of a region or window that was deregistered, invalidated or bound anew."
        "man ibv_dereg_mr; IBA 10.6.7.5: a key is dead once its region is deregistered";
    KeyOutOfRange "key-out-of-range" Error
        "The key is good, but the addresses are not all inside its region."
        "man ibv_reg_mr; IBA 10.6.3: an access stays inside addr .. addr + length";
    AccessMissing "access-missing" Error
        "A region, window or queue pair does not grant the right that an operation needs."
        "man ibv_reg_mr, man ibv_modify_qp: IBV_ACCESS_* of the region and qp_access_flags of the queue pair";
    AccessUnused "access-unused" Advice
        "A region granted a right to peers that none of them used."
        "man ibv_reg_mr: every peer that has the rkey can do what access allows; grant only the rights it needs";
    NeverSignaled "never-signaled" Error
        "The send queue is full of unsignaled requests: no completion can ever free a slot in it."
        "man ibv_post_send: without IBV_SEND_SIGNALED there is no completion that frees the slots before it";
    SlotsWithoutCompletion "slots-without-completion" Error
        "A request was posted into a slot of the send queue whose completion was never polled."
        "man ibv_post_send; IBA 10.8.5.1: a slot is free once its completion or a later one is polled";
    CqTooSmall "cq-too-small" Warning
        "The queues of a completion queue can produce more completions than it can hold, and it was nearly full."
        "man ibv_create_cq: cqe has to suffice for all queues that complete there";
    CqOverrun "cq-overrun" Error
        "A completion queue overflowed: completions are lost and its queue pairs fail."
        "man ibv_create_cq, man ibv_get_async_event: IBV_EVENT_CQ_ERR";
    ReceiveLate "receive-late" Warning
        "A message found no receive posted: the sender has to wait and retransmit, or the message is lost."
        "IBA 9.7.5.2.8: RNR NAK; UD and UC lose the message";
    RnrTimerZero "rnr-timer-zero" Warning
        "min_rnr_timer is 0, which means 655.36 ms, and a sender had to wait for that long."
        "man ibv_modify_qp: min_rnr_timer; IBA table 45";
    InlineOverGrant "inline-over-grant" Error
        "More inline bytes were posted than max_inline_data was granted."
        "man ibv_create_qp: max_inline_data";
    PostInError "post-in-error" Warning
        "A request was posted to a queue pair in the error state."
        "man ibv_post_send; IBA 10.3.1.5: it completes with IBV_WC_WR_FLUSH_ERR";
    SleepWithCompletions "sleep-with-completions" Error
        "A thread waits for a completion event while completions are queued and no event is due."
        "man ibv_get_cq_event: after ibv_req_notify_cq poll once more, then wait";
    EventUnread "event-unread" Warning
        "Events are unread while a thread sleeps in epoll_wait: it waits for edges and read too few events."
        "man epoll: with EPOLLET read until EAGAIN; man ibv_get_cq_event, man ibv_get_async_event: one at a time";
    EventsUnacked "events-unacked" Error
        "An object with unacknowledged events was destroyed: the call waits forever."
        "man ibv_ack_cq_events, man ibv_ack_async_event, man rdma_ack_cm_event";
    AckedTooMany "acked-too-many" Error
        "More events were acknowledged than were read."
        "man ibv_ack_cq_events: nevents";
    AsyncUnread "async-unread" Warning
        "The asynchronous event of a failed queue or device was not read for a second."
        "man ibv_get_async_event: nothing else says that the object has failed";
    CompletionOfTheDead "completion-of-the-dead" Warning
        "A queue pair was destroyed with unpolled completions, and their completion queue was polled afterwards."
        "man ibv_destroy_qp; IBA 10.2.4.2: a card may keep its completions in the queue or remove them";
    MtuOverPort "mtu-over-port" Error
        "path_mtu is above the active_mtu of the port."
        "man ibv_modify_qp; IBA 11.2.5.2";
    MtuMismatch "mtu-mismatch" Error
        "The two ends of a connection have different path_mtu."
        "IBA 9.6.4: both ends of a connection use one path MTU";
    PsnMismatch "psn-mismatch" Error
        "rq_psn of one end is not sq_psn of the other."
        "man ibv_modify_qp; IBA 9.7.1: rq_psn is the peer's sq_psn";
    QkeyMismatch "qkey-mismatch" Error
        "The Q_Key of a datagram differs from that of its queue pair."
        "man ibv_post_send, man ibv_modify_qp; IBA 9.6.1.4.1";
    DestMismatch "dest-mismatch" Error
        "The two ends of a connection do not name each other's queue pair number."
        "man ibv_modify_qp: dest_qp_num";
    DepthMismatch "depth-mismatch" Error
        "max_rd_atomic is above max_dest_rd_atomic of the peer."
        "man ibv_modify_qp; IBA 9.7.5.2.3: the responder refuses what exceeds its resources";
    GidMismatch "gid-mismatch" Error
        "The source GID is of another family than the destination, or not the address that the peer expects."
        "man ibv_modify_qp: ah_attr.grh.sgid_index; IBA 9.6.1.5";
    TimeoutZero "timeout-zero" Warning
        "A packet was lost, and timeout 0 means to wait forever, or retry_cnt 0 to give up at once."
        "man ibv_modify_qp: timeout, retry_cnt; IBA 9.7.6.1.3";
    UdReceiveTooSmall "ud-receive-too-small" Error
        "A receive of a UD queue pair has no room for the 40 bytes of the GRH and the message."
        "man ibv_post_recv: the first 40 bytes are the GRH";
    DestroyWithOutstanding "destroy-with-outstanding" Warning
        "A queue pair was destroyed while requests had not completed: their buffers may still be in use."
        "IBA 10.2.4.2; man ibv_destroy_qp: move it to the error state and poll its completions first";
    ForkInFlight "fork-in-flight" Warning
        "The program forked while requests were outstanding, and has not called ibv_fork_init."
        "man ibv_fork_init: before Linux 5.12 a page that a card uses may move to the child";
    DestroyOrder "destroy-order" Error
        "An object was to be destroyed before the objects that use it."
        "man ibv_dealloc_pd, man ibv_destroy_cq: EBUSY";
    UseAfterDestroy "use-after-destroy" Error
        "The handle of a destroyed object was used."
        "man ibv_destroy_qp and the other calls that destroy";
    Leak "leak" Warning
        "Objects were alive when the program ended."
        "man ibv_close_device: it does not release the objects of the context";
    AttrGarbage "attr-garbage" Error
        "Attributes hold values that no card accepts: unknown bits, or memory that was never set."
        "man ibv_modify_qp, man ibv_create_qp_ex: unknown flags and comp_mask bits are refused";
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The rules that are checked, and the consequences of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    rules: Vec<Rule>,
    /// True if an error changes the exit status of a successful program to 66.
    pub fails: bool,
    /// Halts the program at its first error.
    pub halt: Halt,
    /// True if reports end with a suppression that would hide them.
    pub suggests: bool,
}

/// The act on a program at its first error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Halt {
    /// The program continues.
    #[default]
    No,
    /// Stops in the debugger that runs the program, or ends it (`SIGTRAP`).
    Trap,
    /// Waits until a debugger attaches (`SIGSTOP`).
    Wait,
}

impl Selection {
    /// Parses words separated by commas: rule names, `on` for errors and warnings (the default),
    /// `all` for advice too, `-RULE` to leave a rule out, `warn` to keep the exit status, `stop`
    /// and `wait` to halt at the first error, `suggest` to print suppressions.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut with, mut without, mut fails) = (Vec::new(), Vec::new(), true);
        let (mut halt, mut suggests) = (Halt::No, false);
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word.strip_prefix('-') {
                Some(name) => without.push(Self::rule(name)?),
                None if word == "warn" => fails = false,
                None if word == "stop" => halt = Halt::Trap,
                None if word == "wait" => halt = Halt::Wait,
                None if word == "suggest" => suggests = true,
                None if word == "all" => with.extend_from_slice(Rule::ALL),
                None if word == "on" => with.extend(default_rules()),
                None => with.push(Self::rule(word)?),
            }
        }
        let selected = if with.is_empty() { default_rules().collect() } else { with };
        let rules = Rule::ALL.iter().copied().filter(|rule| selected.contains(rule) && !without.contains(rule));
        Ok(Self { rules: rules.collect(), fails, halt, suggests })
    }

    fn rule(name: &str) -> Result<Rule, String> {
        let unknown = || format!("there is no rule '{name}'; `roxe rules` lists them");
        Rule::ALL.iter().copied().find(|rule| rule.name() == name).ok_or_else(unknown)
    }

    /// Returns true if `rule` is checked.
    pub fn contains(&self, rule: Rule) -> bool {
        self.rules.contains(&rule)
    }
}

/// Returns the rules without advice, which is opt-in because it is about correct programs.
fn default_rules() -> impl Iterator<Item = Rule> {
    Rule::ALL.iter().copied().filter(|rule| rule.severity() > Severity::Advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_names_are_unique_kebab_case_and_sources_exist() {
        for (index, rule) in Rule::ALL.iter().enumerate() {
            let name = rule.name();
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{name}");
            assert!(Rule::ALL[index + 1..].iter().all(|other| other.name() != name), "two rules are named {name}");
            assert!(rule.summary().ends_with('.') && !rule.source().is_empty(), "{name}");
        }
    }

    #[test]
    fn selection_includes_and_excludes_rules() {
        let only = Selection::parse("key-stale, leak").unwrap();
        assert!(only.contains(Rule::KeyStale) && only.contains(Rule::Leak) && !only.contains(Rule::KeyConfused));
        let without = Selection::parse("-leak,warn").unwrap();
        assert!(!without.contains(Rule::Leak) && without.contains(Rule::KeyStale) && !without.fails);
        assert!(Selection::parse("").unwrap().fails && Selection::parse("all").unwrap().contains(Rule::Leak));
        for (text, has_advice) in [("", false), ("on", false), ("-leak", false), ("all", true), ("access-unused", true)]
        {
            assert_eq!(Selection::parse(text).unwrap().contains(Rule::AccessUnused), has_advice, "{text}");
        }
        let halting = Selection::parse("stop,suggest").unwrap();
        assert!(halting.halt == Halt::Trap && halting.suggests && halting.contains(Rule::Leak));
        assert_eq!(Selection::parse("leak,wait").unwrap().halt, Halt::Wait);
        assert!(Selection::parse("leek").unwrap_err().contains("'leek'"));
    }
}
