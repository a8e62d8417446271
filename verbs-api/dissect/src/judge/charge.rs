//! Rules that cards are judged by, and charges against cards that break them.

use roxe_wire::{Gid, Qpn};
use std::fmt;

/// Weight of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Neither loss nor another event outside the capture explains the packets.
    Fault,
    /// Some cards behave so on purpose, or an event outside the capture may explain the packets.
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

/// Role of a card in the packets of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The card that sends the requests.
    Requester,
    /// The card that responds to the requests.
    Responder,
    /// The sender of a packet that is wrong without regard to other packets.
    Sender,
    /// The card that sends messages of the connection manager.
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
    /// IP address as a GID.
    pub address: Gid,
    /// Queue pair number; `None` if no packet of the capture carries it.
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
        #[allow(missing_docs, reason = "`Rule::text` describes each rule")]
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
    IpDf "ip-df" "IP-DF" "The DF flag of an IPv4 packet is 1."
    IpChecksum "ip-checksum" "IP-PLAIN" "The checksum of an IPv4 header is correct; 0 is allowed where the interface computes it later."
    Address "address" "AV-VALID" "The source address is a unicast address. The destination is too, except for multicast datagrams."
    Icrc "icrc" "ICRC-SUM" "The ICRC is correct. A wrong ICRC is the sender's fault only if none of its packets has a correct one."
    Version "version" "BTH-VERSION" "The transport header version (TVer) is 0."
    Opcode "opcode" "OPCODE-RESERVED" "The opcode is not reserved."
    Headers "headers" "HEADER-ORDER" "A packet contains all headers that its opcode requires."
    Pad "pad" "BTH-PAD" "Padding makes the payload a multiple of 4 bytes and is zero. FIRST and MIDDLE packets have no padding."
    Payload "payload" "PAYLOAD-RULE" "A packet without data, such as an ACK or a READ request, carries no payload."
    Reserved "reserved" "BTH-RESERVED" "Reserved header bits are 0."
    Pkey "pkey" "PKEY-MATCH" "The P_Key is valid and the same in all packets of a connection."
    QueuePair "queue-pair" "CM-GSI" "No packet is sent to QP 0. Only datagrams with the well-known Q_Key are sent to QP 1."
    Multicast "multicast" "UD-MULTICAST" "Multicast datagrams are sent to QP 0xffffff, and only multicast datagrams are."
    Solicited "solicited" "BTH-SOLICITED" "The SE bit is set only in the last packet of a SEND or of a WRITE with immediate data."
    AnswerBits "answer-bits" "ACK-FIELDS" "In responses the SE and AckReq bits are 0."
    Syndrome "syndrome" "AETH-SYNDROME" "An AETH contains neither a reserved syndrome nor a reserved NAK code."
    Service "service" "TAKE-SERVICE" "All packets of a connection belong to one transport service."
    PsnOrder "psn-order" "PSN-24BIT" "Each request packet has the PSN that follows the packet before it."
    PsnStart "psn-start" "PSN-START" "The first request has the starting PSN that the sender's REQ or REP carried."
    PsnContiguous "psn-span" "PSN-SPAN" "No PSN is skipped. A READ request uses one PSN for each of its response packets."
    OpcodeOrder "opcode-order" "CHECK-SEQUENCE" "A message is one ONLY packet, or FIRST, MIDDLE and LAST packets of one operation without interruption."
    Mtu "mtu" "MTU-PATH" "The path MTU is 256, 512, 1024, 2048 or 4096 bytes."
    PacketLength "packet-length" "CHECK-LENGTH" "FIRST and MIDDLE packets carry one path MTU, LAST packets 1 byte to one path MTU, ONLY packets at most one."
    DmaLength "dma-length" "CHECK-DMA-LENGTH" "The packets of a WRITE together carry the DMA length of its RETH."
    MessageLength "message-length" "SEND-MAX-LENGTH" "A message is at most 2^31 bytes long."
    AtomicOperands "atomic-operands" "ATOMIC-OPERANDS" "The compare operand of a FETCH ADD is 0."
    AtomicAligned "atomic-aligned" "CHECK-ATOMIC-ALIGNED" "The responder refuses an atomic whose address is not a multiple of 8."
    XrcQueue "xrc-queue" "XRC-ONE-QUEUE" "All packets of an XRC message specify the same SRQ."
    ReadDepth "read-depth" "SEND-RD-ATOMIC" "Outstanding READs and atomics do not exceed the number that both ends agreed on."
    Repeat "repeat" "RETRY-SAME-OPCODES" "A retransmitted packet has the opcode, length, R_Key and address of its first transmission."
    ReadTail "read-tail" "RETRY-READ-TAIL" "A retransmitted READ requests the end of the original READ: the same R_Key and the same last byte."
    GoBack "go-back" "RETRY-GO-BACK" "The requester does not retransmit requests that it knows to be acknowledged."
    EarlyRepeat "early-repeat" "TIMER-RANGE" "The requester retransmits only after a NAK or after the ACK timeout."
    AfterNak "after-nak" "NAK-SEQUENCE" "After a PSN sequence error NAK the requester retransmits from the PSN of the NAK."
    RnrWait "rnr-wait" "RNR-WAIT" "After an RNR NAK the requester waits at least as long as its RNR timer says."
    Credits "credits" "ACK-CREDITS" "The requester does not send more SENDs than it has credits for."
    ResponseMatch "ghost" "RESP-REGION" "Every response belongs to a request that was sent."
    ResponseKind "response-kind" "RESP-KIND" "A READ is answered with READ responses, an atomic with an ATOMIC ACK, any other request with an ACK."
    ReadLength "read-length" "READ-LENGTH" "Each READ response carries one path MTU; the last carries the remaining bytes."
    ReadOrder "read-order" "READ-RESPONSES" "READ responses are one ONLY packet, or FIRST, MIDDLE and LAST packets with consecutive PSNs."
    ReadPositive "read-positive" "READ-POSITIVE" "The AETH of a READ or ATOMIC response is an ACK, not a NAK."
    AnswerOrder "answer-order" "ANSWER-ORDER" "Responses are sent in PSN order and are sent again only for retransmitted requests."
    Msn "msn" "MSN-COUNT" "The MSN is the number of messages that the responder has completed."
    NakGap "nak-missing" "GAP-NAK" "A PSN sequence error NAK carries the PSN of a missing packet, once, and never an acknowledged PSN."
    NakAfterRnr "nak-after-rnr" "GAP-AFTER-RNR" "After an RNR NAK the responder drops later requests without a sequence error NAK."
    LateRefusal "late-refusal" "ACK-AFTER-DEED" "The responder does not refuse a request that it has acknowledged."
    AfterRefusal "after-refusal" "NAK-FATAL" "After a NAK that ends the connection the responder acknowledges no further requests."
    RnrReceive "rnr-receive" "CHECK-RECEIVE" "An RNR NAK refuses only requests that consume a receive."
    UnreliableAnswer "unreliable-answer" "UC-SILENT" "The responder of an unreliable connection sends no responses."
    CnpFields "cnp-fields" "CNP-FORMAT" "A CNP has BECN set, PSN 0 and 16 reserved bytes of zero."
    CnpUnmarked "cnp-unmarked" "CNP-WHEN" "A CNP is sent only after a packet with a congestion mark (ECN CE)."
    CnpPace "cnp-pace" "CNP-INTERVAL" "CNPs to one QP are at least a minimum interval apart."
    CmMad "cm-mad" "CM-MAD" "A CM message is a MAD of 256 bytes with class 7."
    CmReserved "cm-reserved" "CM-RESERVED" "Reserved bits of a CM message are 0."
    CmId "cm-id" "CM-ID" "A communication ID is not 0."
    CmAddress "cm-address" "CM-REQ-CHECKS" "The addresses in a REQ are those of its packet, and its path MTU is valid."
    CmMatch "cm-match" "CM-MATCH" "A CM message carries the communication IDs of both ends of its connection."
    CmOrder "cm-order" "CM-ESTABLISH" "A REP follows a REQ, an RTU a REP, a DREP a DREQ and a SIDR_REP a SIDR_REQ."
    CmRepeat "cm-repeat" "CM-REQ-DUPLICATE" "A retransmitted CM message is identical to the first transmission."
    CmQueuePair "cm-queue-pair" "CM-DREQ" "A DREQ carries the QPN of its receiver."
}

/// A charge: a card broke a rule.
#[derive(Clone, Debug)]
pub struct Charge {
    /// The broken rule.
    pub rule: Rule,
    /// Weight of the charge.
    pub class: Class,
    /// The card at fault.
    pub card: Card,
    /// Role of that card.
    pub role: Role,
    /// True if the network between card and capture may be at fault instead.
    pub or_network: bool,
    /// Index of the connection, if the packets belong to one.
    pub connection: Option<usize>,
    /// Indexes of the packets that prove the charge, in their order.
    pub packets: Vec<usize>,
    /// Sentence that describes the fault.
    pub text: String,
    /// True if a packet that the capture has lost could explain the charge.
    pub(super) needs_whole_capture: bool,
    /// Number of charges of the same kind in the same connection.
    pub count: usize,
}

/// Charges in the order in which they were made.
#[derive(Clone, Debug, Default)]
pub(super) struct Charges(pub Vec<Charge>);

impl Charges {
    /// Adds a fault that one packet proves.
    pub(super) fn add(
        &mut self,
        rule: Rule,
        card: Card,
        role: Role,
        packet: usize,
        text: impl Into<String>,
    ) -> &mut Charge {
        self.0.push(Charge {
            rule,
            class: Class::Fault,
            card,
            role,
            or_network: false,
            connection: None,
            packets: vec![packet],
            text: text.into(),
            needs_whole_capture: false,
            count: 1,
        });
        let last = self.0.len() - 1;
        &mut self.0[last]
    }
}

impl Charge {
    /// Adds a packet to the proof.
    pub(super) fn with(&mut self, packet: usize) -> &mut Self {
        self.packets.push(packet);
        self
    }

    /// Turns the charge into advice.
    pub(super) fn advice(&mut self) -> &mut Self {
        self.advice_if(true)
    }

    pub(super) fn advice_if(&mut self, is_uncertain: bool) -> &mut Self {
        if is_uncertain {
            self.class = Class::Advice;
        }
        self
    }

    /// Turns the charge into advice if packets of the connection are missing from the capture.
    pub(super) fn if_whole(&mut self) -> &mut Self {
        self.needs_whole_capture = true;
        self
    }
}

impl fmt::Display for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, class, card, role, or_network, text, .. } = self;
        let network = if *or_network { ", or the network" } else { "" };
        write!(f, "{}  {card} ({}{network}): {text} [{} {}]", class.name(), role.name(), rule.name(), rule.clause())
    }
}
