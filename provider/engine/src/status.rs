//! State of a device's queue pairs as text for `roxe top` and `roxe metrics`.
//!
//! Lines of words: `device` with the names of device and interface, `counter` with name and value,
//! `qp` with `name=value` pairs. Locks the queue pairs one after the other.

use crate::engine::Engine;
use crate::queue_pair::QpStats;
use roxe_transport::qp::{QpStatus, Service};
use std::fmt::Write;

impl Engine {
    /// Answers pending requests. Background thread only.
    pub(crate) fn answer_status(&self) {
        let control = self.starting.lock();
        if let Some(socket) = control.as_ref().and_then(|control| control.status.as_ref()) {
            socket.answer(|| self.status_text());
        }
    }

    pub(crate) fn status_text(&self) -> String {
        self.count_socket_drops();
        let mut text = format!("device {} {}\n", self.adapter.name(), self.adapter.netdev());
        for (name, value) in self.adapter.counters().list() {
            let _ = writeln!(text, "counter {name} {value}");
        }
        let further = self.further().flat_map(|engine| engine.table.list());
        for qp in self.table.list().into_iter().chain(further) {
            let (status, stats) = qp.status();
            line(&status, &stats, &mut text);
        }
        text
    }
}

fn line(status: &QpStatus, stats: &QpStats, to: &mut String) {
    let QpStatus { qpn, peer: (peer, address), path_mtu, sends, outstanding, .. } = status;
    let QpStatus { unacknowledged, window, reads, sent, received, expected, .. } = status;
    let (service, state) = (service_name(status.service), format!("{:?}", status.state).to_uppercase());
    let address = if address.is_zero() { "-".to_owned() } else { address.to_ip().to_string() };
    let waits = if status.waits_for_receive { 1 } else { 0 };
    let error = stats.error.map_or_else(|| "-".to_owned(), |error| format!("{error:?}"));
    let losses = stats.retries;
    let _ = writeln!(
        to,
        "qp qpn={qpn} service={service} state={state} peer={peer} address={address} path_mtu={path_mtu} \
         sends={sends} outstanding={outstanding} unacknowledged={unacknowledged} window={window} reads={reads} \
         sent_psn={sent} received={received} expected_psn={expected} waits_for_receive={waits} \
         seq_naks={} implied_naks={} timeouts={} rnr_received={} rnr_sent={} sent_bytes={} \
         received_bytes={} error={error}",
        losses.packet_seq_err,
        losses.implied_nak_seq_err,
        losses.local_ack_timeout_err,
        losses.rnr_nak_retry_err,
        losses.send_rnr_err,
        stats.sent_bytes,
        stats.received_bytes,
    );
}

const fn service_name(service: Service) -> &'static str {
    match service {
        Service::Rc => "RC",
        Service::Uc => "UC",
        Service::Ud => "UD",
        Service::XrcIni => "XRC_INI",
        Service::XrcTgt => "XRC_TGT",
        Service::Raw => "RAW",
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{FakeQp, private_engine};
    use roxe_base::config::config;
    use std::sync::Arc;

    #[test]
    fn status_text_lists_device_counters_and_queue_pairs() {
        let engine = private_engine(config().unwrap());
        engine.counters().sent_packets.add(7);
        engine.table.add_slot(roxe_net::slot::Slot::new(3));
        assert!(engine.table.insert(5, |qpn| Arc::new(FakeQp(qpn))));
        let text = engine.status_text();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("device roxe0 lo"));
        assert!(lines.any(|line| line == "counter sent_packets 7"));
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("qp qpn=0x3005 service=RC state=RTS peer=0x0 address=- path_mtu=1024 "), "{last}");
        assert!(last.ends_with(" error=-"), "{last}");
    }
}
