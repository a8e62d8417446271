//! The messages of connection management, field by field (IBA §12.6 to §12.11; Linux
//! include/rdma/ibta_vol1_c12.h).
//!
//! Offsets count from byte 24 of the MAD; bit 0 is the most significant bit of its byte. Other bits
//! are reserved: 0 when written, ignored when read.
// clause: CM-FIELDS

use super::bits::layout;
use super::num::{
    Answered, AprStatus, CommId, FlowLabel, Guid, Info, MtuCode, PrivateData, RejReason, ServiceId, SidrStatus,
    TimeCode, Transport, Uint, VendorId,
};
use crate::num::{Gid, Pkey, Psn, Qkey, Qpn};

layout! {
    /// A path in a REQ. LIDs, SL, rate and the subnet bit have no meaning on RoCE: a receiver
    /// accepts any value.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Path of 44 bytes {
        /// LID of the sender; on RoCE 0xffff if packets may pass a router, else 0.
        local_lid: u16 = [0, 0, 16];
        /// LID of the receiver.
        remote_lid: u16 = [2, 0, 16];
        /// Address of the sender.
        local_gid: Gid = [4, 0, 128];
        /// Address of the receiver.
        remote_gid: Gid = [20, 0, 128];
        /// Flow label.
        flow_label: FlowLabel = [36, 0, 20];
        /// Static rate, as `enum ibv_rate`; 0 for the rate of the port.
        packet_rate: Uint<6> = [39, 2, 6];
        /// Traffic class.
        traffic_class: u8 = [40, 0, 8];
        /// Hop limit.
        hop_limit: u8 = [41, 0, 8];
        /// Service level.
        sl: Uint<4> = [42, 0, 4];
        /// True if both ends are in one subnet.
        subnet_local: bool = [42, 4, 1];
        /// Local ACK timeout of the sender's queue pair, also used by the receiver's.
        local_ack_timeout: TimeCode = [43, 0, 5];
    }
}

layout! {
    /// Request for a connection, of the active side.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Req of 232 bytes {
        /// Id that the sender gives to the connection.
        local_comm_id: CommId = [0, 0, 32];
        /// Vendor of the options that the sender offers.
        vendor_id: VendorId = [5, 0, 24];
        /// Requested service.
        service_id: ServiceId = [8, 0, 64];
        /// Node GUID of the sender.
        local_ca_guid: Guid = [16, 0, 64];
        /// Q_Key of the sender; 0 without datagrams.
        local_qkey: Qkey = [28, 0, 32];
        /// Queue pair of the sender.
        local_qpn: Qpn = [32, 0, 24];
        /// Maximum number of READs and atomics that the sender serves at a time.
        responder_resources: u8 = [35, 0, 8];
        /// End-to-end context of the sender; reliable datagram only.
        local_eecn: Qpn = [36, 0, 24];
        /// Maximum number of READs and atomics that the sender will have outstanding.
        initiator_depth: u8 = [39, 0, 8];
        /// End-to-end context of the receiver; reliable datagram only.
        remote_eecn: Qpn = [40, 0, 24];
        /// Expected response time of the receiver.
        remote_cm_response_timeout: TimeCode = [43, 0, 5];
        /// Transport service of the connection.
        transport: Transport = [43, 5, 2] [51, 5, 3];
        /// True if the sender implements end-to-end flow control.
        flow_control: bool = [43, 7, 1];
        /// First PSN that the sender expects: the receiver begins with it.
        starting_psn: Psn = [44, 0, 24];
        /// Response time of the sender.
        local_cm_response_timeout: TimeCode = [47, 0, 5];
        /// Retries of the connection before it is broken.
        retry_count: Uint<3> = [47, 5, 3];
        /// Partition key.
        pkey: Pkey = [48, 0, 16];
        /// Path MTU.
        path_mtu: MtuCode = [50, 0, 4];
        /// True if a reliable datagram channel exists already.
        rdc_exists: bool = [50, 4, 1];
        /// Retries after receiver-not-ready; 7 for no limit.
        rnr_retry_count: Uint<3> = [50, 5, 3];
        /// Retries of connection management messages on both sides.
        max_cm_retries: Uint<4> = [51, 0, 4];
        /// True if the sender's queue pair receives from an SRQ.
        srq: bool = [51, 4, 1];
        /// Path of the connection.
        primary: Path = [52, 0, 352];
        /// Alternate path; see [`Req::has_alternate`].
        alternate: Path = [96, 0, 352];
        /// True if the sender implements alternate path migration by message (suggested alternate
        /// path).
        sap_supported: bool = [139, 5, 1];
        /// Private data of the program, on RDMA CM after an [`IpCmHeader`](super::ip::IpCmHeader).
        private_data: PrivateData<92> = [140, 0, 736];
    }
}

impl Req {
    /// Returns true if the request offers an alternate path.
    pub fn has_alternate(&self) -> bool {
        self.alternate.local_lid != 0 || !self.alternate.local_gid.is_zero()
    }
}

layout! {
    /// Message receipt acknowledgement: the answer will be sent later.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Mra of 232 bytes {
        /// The sender's id of the connection.
        local_comm_id: CommId = [0, 0, 32];
        /// The receiver's id of the connection.
        remote_comm_id: CommId = [4, 0, 32];
        /// Acknowledged message.
        answered: Answered = [8, 0, 2];
        /// Requested wait for the answer.
        service_timeout: TimeCode = [9, 0, 5];
        /// Private data of the program.
        private_data: PrivateData<222> = [10, 0, 1776];
    }
}

layout! {
    /// Rejection of a message (REJ).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Rej of 232 bytes {
        /// The sender's id of the connection; 0 if it has none.
        local_comm_id: CommId = [0, 0, 32];
        /// The receiver's id of the connection.
        remote_comm_id: CommId = [4, 0, 32];
        /// Rejected message.
        answered: Answered = [8, 0, 2];
        /// Additional information for the reason: with a timeout the node GUID of the
        /// sender, with a GID the one to use.
        info: Info = [9, 0, 7] [12, 0, 576];
        /// Reason for the rejection.
        reason: RejReason = [10, 0, 16];
        /// Private data of the program.
        private_data: PrivateData<148> = [84, 0, 1184];
    }
}

layout! {
    /// Reply to a REQ: the passive side accepts.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Rep of 232 bytes {
        /// Id that the sender gives to the connection.
        local_comm_id: CommId = [0, 0, 32];
        /// The receiver's id of the connection, from its REQ.
        remote_comm_id: CommId = [4, 0, 32];
        /// Q_Key of the sender; 0 without datagrams.
        local_qkey: Qkey = [8, 0, 32];
        /// Queue pair of the sender; 0 for an XRC target.
        local_qpn: Qpn = [12, 0, 24];
        /// Vendor of the options that the sender has chosen.
        vendor_id: VendorId = [15, 0, 8] [19, 0, 8] [23, 0, 8];
        /// End-to-end context of the sender, or the queue pair of an XRC target.
        local_eecn: Qpn = [16, 0, 24];
        /// First PSN that the sender expects: the receiver begins with it.
        starting_psn: Psn = [20, 0, 24];
        /// Maximum number of READs and atomics that the sender serves at a time.
        responder_resources: u8 = [24, 0, 8];
        /// READs and atomics that the sender will have outstanding.
        initiator_depth: u8 = [25, 0, 8];
        /// Maximum delay of the sender's acknowledgements.
        target_ack_delay: TimeCode = [26, 0, 5];
        /// Alternate path: 0 accepted, 1 not supported, 2 rejected.
        failover: Uint<2> = [26, 5, 2];
        /// True if the sender implements end-to-end flow control.
        flow_control: bool = [26, 7, 1];
        /// Retries after receiver-not-ready; 7 for no limit.
        rnr_retry_count: Uint<3> = [27, 0, 3];
        /// True if the sender's queue pair receives from an SRQ.
        srq: bool = [27, 3, 1];
        /// Node GUID of the sender.
        local_ca_guid: Guid = [28, 0, 64];
        /// Private data of the program.
        private_data: PrivateData<196> = [36, 0, 1568];
    }
}

layout! {
    /// Ready to use: the active side has received the REP.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Rtu of 232 bytes {
        /// The sender's id of the connection.
        local_comm_id: CommId = [0, 0, 32];
        /// The receiver's id of the connection.
        remote_comm_id: CommId = [4, 0, 32];
        /// Private data of the program.
        private_data: PrivateData<224> = [8, 0, 1792];
    }
}

layout! {
    /// Request to end a connection.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Dreq of 232 bytes {
        /// The sender's id of the connection.
        local_comm_id: CommId = [0, 0, 32];
        /// The receiver's id of the connection.
        remote_comm_id: CommId = [4, 0, 32];
        /// Queue pair of the receiver.
        remote_qpn: Qpn = [8, 0, 24];
        /// Private data of the program.
        private_data: PrivateData<220> = [12, 0, 1760];
    }
}

layout! {
    /// Reply to a DREQ.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Drep of 232 bytes {
        /// The sender's id of the connection.
        local_comm_id: CommId = [0, 0, 32];
        /// The receiver's id of the connection.
        remote_comm_id: CommId = [4, 0, 32];
        /// Private data of the program.
        private_data: PrivateData<224> = [8, 0, 1792];
    }
}

layout! {
    /// Load alternate path: proposes another path.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Lap of 232 bytes {
        /// The sender's id of the connection.
        local_comm_id: CommId = [0, 0, 32];
        /// The receiver's id of the connection.
        remote_comm_id: CommId = [4, 0, 32];
        /// Queue pair of the receiver.
        remote_qpn: Qpn = [12, 0, 24];
        /// Expected response time of the receiver.
        remote_cm_response_timeout: TimeCode = [15, 0, 5];
        /// LID of the sender on the new path.
        local_lid: u16 = [20, 0, 16];
        /// LID of the receiver.
        remote_lid: u16 = [22, 0, 16];
        /// Address of the sender.
        local_gid: Gid = [24, 0, 128];
        /// Address of the receiver.
        remote_gid: Gid = [40, 0, 128];
        /// Flow label.
        flow_label: FlowLabel = [56, 0, 20];
        /// Traffic class.
        traffic_class: u8 = [59, 0, 8];
        /// Hop limit.
        hop_limit: u8 = [60, 0, 8];
        /// Static rate, as `enum ibv_rate`.
        packet_rate: Uint<6> = [61, 2, 6];
        /// Service level.
        sl: Uint<4> = [62, 0, 4];
        /// True if both ends are in one subnet.
        subnet_local: bool = [62, 4, 1];
        /// Local ACK timeout on this path.
        local_ack_timeout: TimeCode = [63, 0, 5];
        /// Private data of the program.
        private_data: PrivateData<168> = [64, 0, 1344];
    }
}

impl Lap {
    /// Returns the proposed path.
    pub const fn path(&self) -> Path {
        Path {
            local_lid: self.local_lid,
            remote_lid: self.remote_lid,
            local_gid: self.local_gid,
            remote_gid: self.remote_gid,
            flow_label: self.flow_label,
            packet_rate: self.packet_rate,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            sl: self.sl,
            subnet_local: self.subnet_local,
            local_ack_timeout: self.local_ack_timeout,
        }
    }
}

layout! {
    /// Alternate path response: the answer to a LAP.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Apr of 232 bytes {
        /// The sender's id of the connection.
        local_comm_id: CommId = [0, 0, 32];
        /// The receiver's id of the connection.
        remote_comm_id: CommId = [4, 0, 32];
        /// Additional information for the status.
        info: Info = [8, 0, 8] [12, 0, 576];
        /// Status of the path.
        status: AprStatus = [9, 0, 8];
        /// Private data of the program.
        private_data: PrivateData<148> = [84, 0, 1184];
    }
}

layout! {
    /// Service id resolution request: looks up the queue pair of a datagram service.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct SidrReq of 232 bytes {
        /// Id that the sender gives to its request.
        request_id: CommId = [0, 0, 32];
        /// Partition key.
        pkey: Pkey = [4, 0, 16];
        /// Requested service.
        service_id: ServiceId = [8, 0, 64];
        /// Private data of the program, on RDMA CM after an [`IpCmHeader`](super::ip::IpCmHeader).
        private_data: PrivateData<216> = [16, 0, 1728];
    }
}

layout! {
    /// Reply to a SIDR_REQ.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct SidrRep of 232 bytes {
        /// The id in the request.
        request_id: CommId = [0, 0, 32];
        /// Status of the request.
        status: SidrStatus = [4, 0, 8];
        /// Additional information for the status.
        info: Info = [5, 0, 8] [24, 0, 576];
        /// Vendor of the options that the sender has chosen.
        vendor_id: VendorId = [6, 0, 16] [11, 0, 8];
        /// The queue pair to send to.
        qpn: Qpn = [8, 0, 24];
        /// The service in the request.
        service_id: ServiceId = [12, 0, 64];
        /// Q_Key to send with.
        qkey: Qkey = [20, 0, 32];
        /// Private data of the program.
        private_data: PrivateData<136> = [96, 0, 1088];
    }
}
