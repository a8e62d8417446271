//! The path to a peer. Plain data and what it means to messages and queue pairs.

use crate::ah::AhAttr;
use roxe_transport::cm::{QpTerms, Route};
use roxe_transport::wr::Av;
use roxe_wire::{Gid, PathMtu};

/// How long a packet lives on the way, a code: what Linux takes on RoCE.
pub(super) const PACKET_LIFE_TIME: u8 = 16;

/// A path (`struct ibv_sa_path_rec`), in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Our address.
    pub sgid: Gid,
    /// The peer's.
    pub dgid: Gid,
    /// 20 bits.
    pub flow_label: u32,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// P_Key.
    pub pkey: u16,
    /// Bytes of a full packet.
    pub mtu: PathMtu,
    /// `enum ibv_rate`; 0 is not known.
    pub rate: u8,
    /// How long a packet lives on the way, a code.
    pub packet_life_time: u8,
}

impl Path {
    /// The path of a connection on these terms.
    pub(super) fn of_terms(terms: &QpTerms) -> Self {
        Self {
            flow_label: terms.flow_label.get(),
            hop_limit: terms.hop_limit,
            traffic_class: terms.traffic_class,
            // The time for a packet and its acknowledgement is twice that for a packet.
            packet_life_time: terms.timeout.get().saturating_sub(1),
            ..Self::between(terms.route, terms.path_mtu)
        }
    }

    /// The plain path between two addresses.
    pub(super) fn between(route: Route, mtu: PathMtu) -> Self {
        Self {
            sgid: route.local,
            dgid: route.remote,
            flow_label: 0,
            hop_limit: roxe_net::link::HOP_LIMIT,
            traffic_class: 0,
            sl: 0,
            pkey: roxe_wire::Pkey::DEFAULT.0,
            mtu,
            rate: 0,
            packet_life_time: PACKET_LIFE_TIME,
        }
    }

    /// Between which addresses.
    pub(super) fn route(&self) -> Route {
        Route { local: self.sgid, remote: self.dgid }
    }

    /// The way of its packets, from the address with this index.
    pub(super) fn av(&self, sgid_index: u8) -> Av {
        let Self { sgid, dgid, traffic_class, hop_limit, flow_label, .. } = *self;
        Av { sgid, dgid, traffic_class, hop_limit, flow_label, sgid_index, static_rate: 0 }
    }

    /// Where datagrams to the end of this path go, from the address with this index.
    pub(super) fn ah_attr(&self, sgid_index: u8) -> AhAttr {
        AhAttr {
            dgid: self.dgid,
            sgid_index,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
            port: roxe_base::limits::PORTS,
            has_grh: true,
            sl: self.sl,
            static_rate: 0,
        }
    }
}

/// Paths besides the one in use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Alternates {
    /// The peer has not answered yet.
    pub(super) proposed: Option<Path>,
    /// Both ends have it.
    pub(super) loaded: Option<Path>,
}
