//! State of a device's queue pairs and objects as text for `roxe top`, `roxe metrics` and `rdma`.
//!
//! Lines of words. `device` with the names of device and interface is the first. The status adds
//! `counter` with name and value, and `qp` with `name=value` pairs. A list of objects has a line
//! for each, its kind with `name=value` pairs; counts are `count` with kind and number, and `hw`
//! with name and value. The answer about fault rules is `faults`, and `rule` with text and counts
//! for each, or `refused` with the reason. Locks the queue pairs one after the other.

use crate::engine::Engine;
use crate::interceptor::process;
use crate::queue_pair::{QpStats, QueuePair};
use roxe_net::status::{ObjectKind, Query, SHORTENED};
use roxe_observe::counter_files::port_counters;
use roxe_transport::qp::{QpStatus, Service};
use std::fmt::{Arguments, Write};
use std::sync::Arc;

/// Length of a list of objects in bytes at which it ends: more would find no room in the buffer of
/// the querying socket.
const MAX_LIST: usize = 1 << 20;

impl Engine {
    /// Answers pending requests. Background thread only.
    pub(crate) fn answer_status(&self) {
        // The lists take locks that rank outside this one.
        let socket = self.starting.lock().as_ref().and_then(|control| control.status.clone());
        if let Some(socket) = socket {
            socket.answer(|query| self.text(query));
        }
    }

    /// Returns the answer to a query.
    pub(crate) fn text(&self, query: &Query) -> String {
        let head = format!("device {} {}\n", self.adapter.name(), self.adapter.netdev());
        let body = match query {
            Query::Status => self.status(),
            Query::Counts => self.counts(),
            Query::Objects(kind) => self.objects(*kind),
            Query::Faults(rules) => process::answer(rules.as_deref()),
        };
        head + &body
    }

    /// Returns the queue pairs of all engines of the device.
    fn all_qps(&self) -> impl Iterator<Item = Arc<dyn QueuePair>> {
        let further = self.further().flat_map(|engine| engine.table.list());
        self.table.list().into_iter().chain(further)
    }

    fn counts(&self) -> String {
        let count = |kind: ObjectKind| {
            let mut count = 0;
            self.list(kind, &mut |_| count += 1);
            format!("count {} {count}\n", kind.name())
        };
        self.count_socket_drops();
        let counters = self.adapter.counters();
        let values = port_counters(&counters).map(|(name, value)| format!("hw {name} {value}\n"));
        ObjectKind::ALL.into_iter().map(count).chain(values).collect()
    }

    fn objects(&self, kind: ObjectKind) -> String {
        let mut text = String::new();
        let mut is_short = false;
        self.list(kind, &mut |line| {
            is_short |= text.len() > MAX_LIST;
            if !is_short {
                let _ = writeln!(text, "{} {line}", kind.name());
            }
        });
        if is_short { text + SHORTENED } else { text }
    }

    /// Passes each object to `line`.
    fn list(&self, kind: ObjectKind, line: &mut dyn FnMut(Arguments<'_>)) {
        if kind != ObjectKind::Qp {
            return self.services.list_objects(self, kind, line);
        }
        for qp in self.all_qps().filter(|qp| !qp.is_work_queue()) {
            let (status, stats) = qp.status();
            describe(&*qp, &status, &stats, line);
        }
    }

    fn status(&self) -> String {
        self.count_socket_drops();
        let mut text = String::new();
        for (name, value) in self.adapter.counters().list() {
            let _ = writeln!(text, "counter {name} {value}");
        }
        for qp in self.all_qps() {
            let (status, stats) = qp.status();
            append_qp(&status, &stats, &mut text);
        }
        text
    }
}

/// Passes the line of a queue pair in the list of objects to `line`.
fn describe(qp: &dyn QueuePair, status: &QpStatus, stats: &QpStats, line: &mut dyn FnMut(Arguments<'_>)) {
    let (pd, srq) = qp.pd_and_srq();
    let srq = srq.map_or_else(String::new, |srq| format!(" srq={srq}"));
    let state = format!("{:?}", status.state).to_uppercase();
    let migration = format!("{:?}", status.migration).to_uppercase();
    let (losses, service) = (stats.retries, status.service.name());
    line(format_args!(
        "qpn={} type={service} state={state} rqpn={} rq_psn={} sq_psn={} migration={migration} pd={pd}{srq} sent_bytes={} \
         rcvd_bytes={} packet_seq_err={} implied_nak_seq_err={} local_ack_timeout_err={} rnr_nak_retry_err={} \
         send_rnr_err={}",
        status.qpn.get(),
        status.peer.0.get(),
        status.expected.get(),
        status.sent.get(),
        stats.sent_bytes,
        stats.received_bytes,
        losses.packet_seq_err,
        losses.implied_nak_seq_err,
        losses.local_ack_timeout_err,
        losses.rnr_nak_retry_err,
        losses.send_rnr_err,
    ));
}

fn append_qp(status: &QpStatus, stats: &QpStats, to: &mut String) {
    let QpStatus { qpn, peer: (peer, address), path_mtu, sends, outstanding, .. } = status;
    let QpStatus { unacknowledged, window, reads, sent, received, expected, .. } = status;
    let (service, state) = (service_name(status.service), format!("{:?}", status.state).to_uppercase());
    let address = if address.is_zero() { "-".to_owned() } else { address.to_ip().to_string() };
    let waits = if status.in_rnr_wait { 1 } else { 0 };
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
    use super::*;
    use crate::testing::{FakeQp, private_engine};
    use roxe_base::config::config;

    #[test]
    fn lists_and_counts_have_a_line_for_each_object() {
        let engine = private_engine(config().unwrap());
        engine.table.add_slot(roxe_net::slot::Slot::new(3));
        assert!(engine.table.insert(5, |qpn| Arc::new(FakeQp(qpn))));
        assert_eq!(engine.text(&Query::Objects(ObjectKind::Pd)), "device roxe0 lo\npd n=1\npd n=2\n");
        let qps = engine.text(&Query::Objects(ObjectKind::Qp));
        let expected = "device roxe0 lo\nqp qpn=12293 type=RC state=RTS rqpn=0 rq_psn=0 sq_psn=0 migration=REARM pd=7 \
                        srq=3 sent_bytes=0 ";
        assert!(qps.starts_with(expected), "{qps}");
        let counts = engine.text(&Query::Counts);
        assert!(counts.contains("\nhw sent_pkts 0\n"), "{counts}");
        assert_eq!(
            counts.lines().skip(1).take(7).collect::<Vec<_>>(),
            ["count pd 2", "count cq 0", "count qp 1", "count cm_id 0", "count mr 0", "count ctx 0", "count srq 0"]
        );
    }

    #[test]
    fn status_text_lists_device_counters_and_queue_pairs() {
        let engine = private_engine(config().unwrap());
        engine.counters().sent_packets.add(7);
        engine.table.add_slot(roxe_net::slot::Slot::new(3));
        assert!(engine.table.insert(5, |qpn| Arc::new(FakeQp(qpn))));
        let text = engine.text(&Query::Status);
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("device roxe0 lo"));
        assert!(lines.any(|line| line == "counter sent_packets 7"));
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("qp qpn=0x3005 service=RC state=RTS peer=0x0 address=- path_mtu=1024 "), "{last}");
        assert!(last.ends_with(" error=-"), "{last}");
    }
}
