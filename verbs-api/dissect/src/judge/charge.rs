//! Rules that cards are judged by, and charges against cards that break them.

use roxe_wire::{Gid, Qpn};
use std::fmt;

/// Weight of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// No loss, and no other event that the capture may have missed, explains the packets.
    Fault,
    /// Some cards do so on purpose, or an event outside the capture may explain the packets.
    Advice,
}

impl Class {
    /// Returns the class as it is printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fault => "FAULT",
            Self::Advice => "advice",
        }
    }
}

/// Function of a card in the packets of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// It sends the requests.
    Requester,
    /// It answers the requests.
    Responder,
    /// It sends the packet, whose fault does not depend on others.
    Sender,
    /// It sends messages of the connection manager.
    ConnectionManager,
}

impl Role {
    /// Returns the role in one or two words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requester => "requester",
            Self::Responder => "responder",
            Self::Sender => "sender",
            Self::ConnectionManager => "connection manager",
        }
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Card {
    /// Its address.
    pub address: Gid,
    /// Its queue pair; `None` if no packet of the capture tells.
    pub qpn: Option<Qpn>,
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address.to_ip())?;
        match self.qpn {
            Some(qpn) => write!(f, " qp {qpn}"),
            None => Ok(()),
        }
    }
}

macro_rules! rules {
    ($($variant:ident $name:literal $clause:literal $text:literal)+) => {
        /// A rule that cards are judged by.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "`Rule::text` says it")]
        pub enum Rule {
            $($variant,)+
        }

        impl Rule {
            /// All rules, in the order of a packet's headers.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns the name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Returns the clause that the rule follows from.
            pub const fn clause(self) -> &'static str {
                match self { $(Self::$variant => $clause,)+ }
            }

            /// Returns the rule as a sentence.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }
    };
}

rules! {
    IpFragment "ip-df" "IP-DF" "IPv4 packets are sent with DF."
    IpChecksum "ip-checksum" "IP-PLAIN" "The checksum of an IPv4 header is right, or 0 in front of an interface that fills it in."
    Address "address" "AV-VALID" "The source is the address of one host; connections have a host as destination."
    Icrc "icrc" "ICRC-SUM" "The ICRC is right. A wrong one is the sender's fault if none of its packets has a right one."
    Version "version" "BTH-VERSION" "The header version is 0."
    Opcode "opcode" "OPCODE-RESERVED" "No reserved opcode is sent."
    Headers "headers" "HEADER-ORDER" "A packet has all headers of its opcode."
    Pad "pad" "BTH-PAD" "The pad brings the payload to a multiple of 4 bytes, is zeros, and FIRST and MIDDLE have none."
    Payload "payload" "PAYLOAD-RULE" "A packet carries only as much as its opcode allows."
    Reserved "reserved" "BTH-RESERVED" "Reserved bits are sent as 0."
    Pkey "pkey" "PKEY-MATCH" "The P_Key is valid and the same in all packets of a connection."
    QueuePair "queue-pair" "CM-GSI" "No packet goes to queue pair 0; only datagrams with the well-known Q_Key go to 1."
    Multicast "multicast" "UD-MULTICAST" "Datagrams to a group go to queue pair 0xffffff, and only they."
    Solicited "solicited" "BTH-SOLICITED" "SE is set on the last packet of a SEND or WRITE with immediate data only."
    AnswerBits "answer-bits" "ACK-FIELDS" "Answers have neither SE nor A."
    Syndrome "syndrome" "AETH-SYNDROME" "No reserved syndrome or NAK code is sent."
    Service "service" "TAKE-SERVICE" "All packets of a connection are of one service."
    PsnOrder "psn-order" "PSN-24BIT" "PSNs count up by one per packet."
    PsnStart "psn-start" "PSN-START" "The first PSN is the one that the peer named."
    PsnSpan "psn-span" "PSN-SPAN" "No PSN is left out, and a READ takes one for each response."
    OpcodeOrder "opcode-order" "CHECK-SEQUENCE" "FIRST opens a message that MIDDLE and LAST of its kind continue, and nothing interrupts it."
    Mtu "mtu" "MTU-PATH" "A path MTU is 256, 512, 1024, 2048 or 4096 bytes."
    PacketLength "packet-length" "CHECK-LENGTH" "FIRST and MIDDLE carry one path MTU, LAST at least a byte, and no packet more than the path MTU."
    DmaLength "dma-length" "CHECK-DMA-LENGTH" "The packets of a WRITE carry exactly the length in its RETH."
    MessageLength "message-length" "SEND-MAX-LENGTH" "A message has at most 2^31 bytes."
    AtomicOperands "atomic-operands" "ATOMIC-OPERANDS" "The compare operand of a FETCH ADD is 0."
    AtomicAligned "atomic-aligned" "CHECK-ATOMIC-ALIGNED" "An atomic on an address that is no multiple of 8 is refused."
    XrcQueue "xrc-queue" "XRC-ONE-QUEUE" "All packets of a message name one shared receive queue."
    ReadDepth "read-depth" "SEND-RD-ATOMIC" "No more READs and atomics are unanswered than both ends agreed on."
    Repeat "repeat" "RETRY-SAME-OPCODES" "A repeated packet has the opcode, length, key and address of the first time."
    ReadTail "read-tail" "RETRY-READ-TAIL" "A repeated READ asks for a tail of the first one: same key, same end."
    GoBack "go-back" "RETRY-GO-BACK" "A requester does not repeat requests before those that it knows to be acknowledged."
    EarlyRepeat "early-repeat" "TIMER-RANGE" "A packet is repeated after a NAK, or when the ACK timeout has passed."
    AfterNak "after-nak" "NAK-SEQUENCE" "After a sequence NAK the requester begins again with its PSN."
    RnrWait "rnr-wait" "RNR-WAIT" "After an RNR NAK the requester waits for at least the time in it."
    Credits "credits" "ACK-CREDITS" "A requester does not send more SENDs than the responder has receives for."
    Ghost "ghost" "RESP-REGION" "A response answers a request that was sent."
    ResponseKind "response-kind" "RESP-KIND" "A READ is answered by READ responses, an atomic by an ATOMIC ACK, anything else by an ACK."
    ReadLength "read-length" "READ-LENGTH" "A READ response carries one path MTU, the last one the rest."
    ReadOrder "read-order" "READ-RESPONSES" "A READ is answered by ONLY, or by FIRST, MIDDLE and LAST, one PSN after the other."
    ReadPositive "read-positive" "READ-POSITIVE" "The AETH of a READ or atomic response is an ACK."
    AnswerOrder "answer-order" "ANSWER-ORDER" "Answers leave in the order of PSNs, and no answer is repeated unasked."
    Msn "msn" "MSN-COUNT" "The MSN counts complete messages."
    NakMissing "nak-missing" "GAP-NAK" "A sequence NAK names a packet that is missing, once, and never one that was acknowledged."
    NakAfterRnr "nak-after-rnr" "GAP-AFTER-RNR" "Requests behind one that was answered by an RNR NAK are no gap."
    LateRefusal "late-refusal" "ACK-AFTER-DEED" "What was acknowledged is not refused later."
    AfterRefusal "after-refusal" "NAK-FATAL" "After a NAK that ends the connection the responder acknowledges nothing."
    RnrReceive "rnr-receive" "CHECK-RECEIVE" "Only requests that take a receive are answered by an RNR NAK."
    UnreliableAnswer "unreliable-answer" "UC-SILENT" "An unreliable connection answers nothing."
    CnpFields "cnp-fields" "CNP-FORMAT" "A CNP has BECN, PSN 0 and zeros in its 16 reserved bytes."
    CnpUnmarked "cnp-unmarked" "CNP-WHEN" "Only packets that a switch marked are answered by CNPs."
    CnpPace "cnp-pace" "CNP-INTERVAL" "CNPs to one queue pair keep an interval."
    CmMad "cm-mad" "CM-MAD" "A message of the connection manager is a MAD of 256 bytes of class 7."
    CmReserved "cm-reserved" "CM-RESERVED" "Reserved bits of a message are sent as 0."
    CmId "cm-id" "CM-ID" "An end names a connection by a number other than 0."
    CmAddress "cm-address" "CM-REQ-CHECKS" "The addresses in a REQ are those of its packet; its path MTU is one."
    CmMatch "cm-match" "CM-MATCH" "A message names a connection by the ids of both ends."
    CmOrder "cm-order" "CM-ESTABLISH" "REP answers REQ, RTU answers REP, DREP answers DREQ, SIDR_REP answers SIDR_REQ."
    CmRepeat "cm-repeat" "CM-REQ-DUPLICATE" "A repeated message is equal to the first one."
    CmQueuePair "cm-queue-pair" "CM-DREQ" "A DREQ names the queue pair of its receiver."
}

/// A charge: a card broke a rule.
#[derive(Clone, Debug)]
pub struct Charge {
    /// The rule.
    pub rule: Rule,
    /// Weight.
    pub class: Class,
    /// The card at fault.
    pub card: Card,
    /// Its function.
    pub role: Role,
    /// True if the network between card and capture may be at fault instead.
    pub or_network: bool,
    /// Index of the connection, if the packets belong to one.
    pub connection: Option<usize>,
    /// Indexes of the packets that prove it, in their order.
    pub packets: Vec<usize>,
    /// The fault in a sentence.
    pub text: String,
    /// True if a packet that the capture lost could explain the others.
    pub(super) needs_whole_capture: bool,
    /// Number of charges of the same kind in the same connection.
    pub count: usize,
}

impl Charge {
    pub(super) fn new(rule: Rule, card: Card, role: Role, packet: usize, text: String) -> Self {
        let (class, needs_whole_capture, or_network) = (Class::Fault, false, false);
        let (connection, packets, count) = (None, vec![packet], 1);
        Self { rule, class, card, role, or_network, connection, packets, text, needs_whole_capture, count }
    }

    pub(super) fn advice(self) -> Self {
        Self { class: Class::Advice, ..self }
    }

    /// Adds an earlier packet to the proof.
    pub(super) fn with(mut self, packet: usize) -> Self {
        if let Err(at) = self.packets.binary_search(&packet) {
            self.packets.insert(at, packet);
        }
        self
    }

    /// Becomes advice if packets of the connection turn out to be missing from the capture.
    pub(super) fn if_whole(self) -> Self {
        Self { needs_whole_capture: true, ..self }
    }
}

impl fmt::Display for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, class, card, role, or_network, text, .. } = self;
        let network = if *or_network { ", or the network" } else { "" };
        write!(f, "{}  {card} ({}{network}): {text} [{} {}]", class.name(), role.name(), rule.name(), rule.clause())
    }
}
