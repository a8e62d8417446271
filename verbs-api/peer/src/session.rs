//! The session of one controller: its objects, and a method for each command.
//!
//! One table holds the objects under handles that are never reused, and the end of the session
//! destroys them. `session/control.rs` creates and modifies objects, `session/data.rs` posts, polls
//! and accesses memory, `session/cm.rs` connects.

mod cm;
mod control;
mod data;

use crate::protocol::{Args, Command, Refusal, Request, Result, VERSION, limits, names};
use crate::verbs::{Ah, CmChannel, CmEvent, CmId, Context, Cq, EventSource, Mr, Mw, Pd, Qp, Srq, Xrcd};
use roxe_abi::{ibv_device_attr, ibv_gid_entry, ibv_port_attr};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::Read as _;
use std::net::{Ipv6Addr, UdpSocket};
use std::rc::Rc;
use std::time::{Duration, Instant};

pub(super) const ROCE_V2: u32 = 2;
/// Maximum number of counter files that are read.
const MAX_COUNTERS: usize = 256;
/// Maximum number of bytes that are read from a counter file.
const MAX_COUNTER_LEN: u64 = 64;

pub(crate) struct Session {
    context: Rc<Context>,
    port: u8,
    table: Table,
    /// The protection domain of objects whose request has none; created on first use.
    pd: Option<Rc<Pd>>,
    /// The channel of librdmacm, opened on first use.
    cm_channel: Option<Rc<CmChannel>>,
    /// Events that arrived while the session waited for another event.
    cm_events: VecDeque<CmEvent>,
    /// Sockets that make this host join the multicast groups of queue pairs, by queue pair and
    /// group.
    memberships: BTreeMap<(u64, [u8; 16]), UdpSocket>,
}

impl Session {
    pub(crate) fn open(device: Option<&str>, port: u8) -> Result<Self> {
        Ok(Self {
            context: Context::open(device)?,
            port,
            table: Table::default(),
            pd: None,
            cm_channel: None,
            cm_events: VecDeque::new(),
            memberships: BTreeMap::new(),
        })
    }

    /// Executes a request. The server has checked the token of `hello`, and ends the session after
    /// `bye`.
    pub(crate) fn execute(&mut self, request: &Request) -> Result<Value> {
        let (args, nothing) = (&request.args, |()| json!({}));
        match request.command {
            Command::Hello => self.hello(),
            Command::Reg => self.reg(args),
            Command::Dereg => self.table.destroy("mr", args.number("mr")?).map(nothing),
            Command::Rereg => self.rereg(args),
            Command::AllocPd => self.alloc_pd(),
            Command::CreateCq => self.create_cq(args),
            Command::ResizeCq => self.resize_cq(args),
            Command::CreateSrq => self.create_srq(args),
            Command::PostTag => self.post_tag(args),
            Command::ModifySrq => self.table.srq(args.number("srq")?)?.set_limit(args.number("limit")?).map(nothing),
            Command::OpenXrcd => self.open_xrcd(),
            Command::CreateQp => self.create_qp(args),
            Command::ModifyQp => self.modify_qp(args).map(nothing),
            Command::QueryQp => self.query_qp(args),
            Command::PostSend => self.post_send(args).map(nothing),
            Command::PostRecv => self.post_recv(args).map(nothing),
            Command::Poll => self.poll(args),
            Command::Notify => self.table.cq(args.number("cq")?)?.notify(args.is_set("solicited")?).map(nothing),
            Command::CqEvent => self.cq_event(args),
            Command::Read => self.read(args),
            Command::Write => self.write(args).map(nothing),
            Command::Events => self.events(args),
            Command::CreateAh => self.create_ah(args),
            Command::AllocMw => self.alloc_mw(args),
            Command::BindMw => self.bind_mw(args),
            Command::AttachMcast => self.set_member(args, true).map(nothing),
            Command::DetachMcast => self.set_member(args, false).map(nothing),
            Command::CmListen => self.cm_listen(args),
            Command::CmConnect => self.cm_connect(args),
            Command::CmAccept => self.cm_accept(args).map(nothing),
            Command::CmEstablish => self.cm_establish(args).map(nothing),
            Command::CmReject => self.table.cm(args.number("cm")?)?.reject(&private_data(args)?).map(nothing),
            Command::CmDisconnect => self.table.cm(args.number("cm")?)?.disconnect().map(nothing),
            Command::CmNotify => self.table.cm(args.number("cm")?)?.notify().map(nothing),
            Command::CmEvents => self.cm_events(args),
            Command::Counters => self.counters(),
            Command::Destroy => self.table.destroy(args.text("kind")?, args.number("handle")?).map(nothing),
            Command::Reset => {
                self.reset();
                Ok(json!({}))
            }
            Command::Bye => Ok(json!({})),
        }
    }

    fn hello(&self) -> Result<Value> {
        let attr = self.context.device_attr()?;
        let port = self.context.port_attr(self.port)?;
        let gids: Vec<_> = self
            .gids()?
            .iter()
            .map(|entry| {
                let kind = ["IB", "RoCE v1", "RoCE v2"].get(entry.gid_type as usize).copied().unwrap_or("other");
                json!({"index": entry.gid_index, "gid": Ipv6Addr::from(entry.gid.raw).to_string(), "type": kind})
            })
            .collect();
        Ok(json!({
            "device": self.context.name,
            "port": port_info(self.port, &port),
            "gids": gids,
            "limits": device_limits(&attr),
            "identity": self.identity(&attr),
            "version": env!("CARGO_PKG_VERSION"),
            "protocol": VERSION,
        }))
    }

    /// Returns the identity of the card for a report, as texts without unknown parts.
    fn identity(&self, attr: &ibv_device_attr) -> Value {
        let firmware = attr.fw_ver.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte as u8)).collect();
        let driver = fs::read_link(self.context.folder.join("device/driver")).ok();
        let driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        let card = format!("{:#06x} {}", attr.vendor_id, attr.vendor_part_id);
        let parts = [
            ("vendor and part", Some(card)),
            ("firmware", Some(firmware)),
            ("driver", driver),
            ("kernel", kernel.map(|text| text.trim().to_owned())),
        ];
        let known = parts.into_iter().filter_map(|(name, text)| Some((name, text.filter(|text| !text.is_empty())?)));
        known.map(|(name, text)| (name.to_owned(), Value::String(text))).collect::<Map<_, _>>().into()
    }

    pub(super) fn gids(&self) -> Result<Vec<ibv_gid_entry>> {
        let mut gids = self.context.gids()?;
        gids.retain(|entry| entry.port_num == u32::from(self.port));
        Ok(gids)
    }

    fn counters(&self) -> Result<Value> {
        let folder = self.context.folder.join("ports").join(self.port.to_string()).join("hw_counters");
        let files = fs::read_dir(&folder).into_iter().flatten().flatten().take(MAX_COUNTERS);
        let counters: Map<_, _> = files
            .filter_map(|file| {
                let mut text = String::new();
                fs::File::open(file.path()).ok()?.take(MAX_COUNTER_LEN).read_to_string(&mut text).ok()?;
                Some((file.file_name().into_string().ok()?, text.trim().parse::<u64>().ok()?.into()))
            })
            .collect();
        Ok(Value::Object(counters))
    }

    fn events(&self, args: &Args) -> Result<Value> {
        let mut until = deadline(args)?;
        let mut events = Vec::new();
        while events.len() < limits::RESULTS {
            let Some(event) = self.context.event(until)? else { break };
            // Only the first event is awaited.
            until = Instant::now();
            let mut value = json!({"type": names::name(names::EVENTS, event.event_type)});
            match event.source {
                EventSource::Object(kind, address) => value[kind] = self.table.handle_at(kind, address).into(),
                EventSource::Port(port) => value["port"] = port.into(),
                EventSource::Device => {}
            }
            events.push(value);
        }
        Ok(json!({ "events": events }))
    }

    fn reset(&mut self) {
        // Identifiers are destroyed first, including those in unread events.
        self.cm_events.clear();
        self.memberships.clear();
        self.table.clear();
        // The channel's remaining events are about destroyed identifiers.
        self.cm_channel = None;
        self.pd = None;
    }

    /// Returns the protection domain in `args`, or that of the session.
    fn pd(&mut self, args: &Args) -> Result<Rc<Pd>> {
        if let Some(handle) = args.optional("pd")? {
            return self.table.pd(handle);
        }
        if self.pd.is_none() {
            self.pd = Some(Rc::new(Pd::alloc(&self.context)?));
        }
        self.pd.clone().ok_or_else(|| Refusal::invalid("the session has no protection domain"))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.reset();
    }
}

/// Returns the end of the wait that a request specifies.
fn deadline(args: &Args) -> Result<Instant> {
    let wait: u64 = args.or("timeout_ms", 0)?;
    if wait > limits::WAIT_MS {
        return Err(Refusal::invalid(format!("timeout_ms must be at most {}", limits::WAIT_MS)));
    }
    Ok(Instant::now() + Duration::from_millis(wait))
}

fn private_data(args: &Args) -> Result<Vec<u8>> {
    Ok(args.bytes("hex")?.unwrap_or_default())
}

/// Defines the kinds of objects: type, name, and the method of the table that looks one up.
macro_rules! kinds {
    ($($variant:ident($type:ident) $name:literal $method:ident;)+) => {
        pub(super) enum Object {
            $($variant(Rc<$type>),)+
        }

        impl Object {
            const fn kind(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)+
                }
            }

            /// Returns the address of the object in the library, to compare with that in an event.
            fn address(&self) -> usize {
                match self {
                    $(Self::$variant(object) => object.raw.addr(),)+
                }
            }

            fn is_shared(&self) -> bool {
                match self {
                    $(Self::$variant(object) => Rc::strong_count(object) > 1,)+
                }
            }

            /// Destroys the object, which must not be shared.
            fn destroy(self) -> Result<()> {
                match self {
                    $(Self::$variant(object) => Rc::into_inner(object).map_or(Ok(()), |mut object| object.destroy()),)+
                }
            }
        }

        impl Table {
            $(pub(super) fn $method(&self, handle: u64) -> Result<Rc<$type>> {
                match self.objects.get(&handle) {
                    Some(Object::$variant(object)) => Ok(Rc::clone(object)),
                    other => Err(wrong_handle($name, handle, other)),
                }
            })+
        }
    };
}

kinds! {
    Pd(Pd) "pd" pd;
    Cq(Cq) "cq" cq;
    Srq(Srq) "srq" srq;
    Qp(Qp) "qp" qp;
    Mr(Mr) "mr" mr;
    Mw(Mw) "mw" mw;
    Ah(Ah) "ah" ah;
    Xrcd(Xrcd) "xrcd" xrcd;
    Cm(CmId) "cm" cm;
}

fn wrong_handle(kind: &str, handle: u64, found: Option<&Object>) -> Refusal {
    let text = found.map_or_else(
        || format!("there is no {kind} {handle}"),
        |object| format!("{handle} is of kind {}, not {kind}", object.kind()),
    );
    Refusal::invalid(text)
}

#[derive(Default)]
pub(super) struct Table {
    objects: BTreeMap<u64, Object>,
    last: u64,
    memory: usize,
}

impl Table {
    /// Fails if one more object with `memory` bytes exceeds a limit.
    pub(super) fn check_room(&self, memory: usize) -> Result<()> {
        let refuse = |text: String| Err(Refusal { text, errno: libc::ENOMEM });
        if self.objects.len() >= limits::OBJECTS {
            return refuse(format!("a session can have at most {} objects", limits::OBJECTS));
        }
        if memory > limits::MEMORY - self.memory {
            return refuse(format!("a session can register at most {} bytes", limits::MEMORY));
        }
        Ok(())
    }

    pub(super) fn insert(&mut self, object: Object) -> u64 {
        if let Object::Mr(mr) = &object {
            self.memory += mr.len();
        }
        self.last += 1;
        self.objects.insert(self.last, object);
        self.last
    }

    pub(super) fn destroy(&mut self, kind: &str, handle: u64) -> Result<()> {
        let object = self.objects.get(&handle).filter(|object| object.kind() == kind);
        let object = object.ok_or_else(|| wrong_handle(kind, handle, self.objects.get(&handle)))?;
        if object.is_shared() {
            return Err(Refusal { text: format!("{kind} {handle} is still in use"), errno: libc::EBUSY });
        }
        let Some(object) = self.objects.remove(&handle) else { return Ok(()) };
        if let Object::Mr(mr) = &object {
            self.memory -= mr.len();
        }
        object.destroy()
    }

    /// Destroys all objects, each before the objects that it uses. Destroys windows before the
    /// queue pairs that they are bound to, because rxe would otherwise wait 50 seconds.
    pub(super) fn clear(&mut self) {
        for kind in ["cm", "mw", "qp", "ah", "mr", "srq", "cq", "xrcd", "pd"] {
            self.objects.retain(|_, object| object.kind() != kind);
        }
        self.memory = 0;
    }

    /// Returns the handle of the object of kind `kind` at `address`.
    pub(super) fn handle_at(&self, kind: &str, address: usize) -> Option<u64> {
        let matches = |object: &Object| object.kind() == kind && object.address() == address;
        self.objects.iter().find(|(_, object)| matches(object)).map(|(handle, _)| *handle)
    }
}

fn port_info(number: u8, port: &ibv_port_attr) -> Value {
    let states = ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"];
    let state = usize::try_from(port.state).ok().and_then(|state| states.get(state)).copied().unwrap_or("other");
    json!({
        "number": number, "state": state, "active_mtu": mtu_bytes(port.active_mtu),
        "max_mtu": mtu_bytes(port.max_mtu), "gid_tbl_len": port.gid_tbl_len, "max_msg_sz": port.max_msg_sz,
        "pkey_tbl_len": port.pkey_tbl_len, "lid": port.lid,
        "link_layer": if port.link_layer == 2 { "Ethernet" } else { "InfiniBand" },
    })
}

/// Returns the bytes of an `enum ibv_mtu`; 0 for an unknown value.
pub(super) fn mtu_bytes(mtu: i32) -> u32 {
    if (1..=5).contains(&mtu) { 128 << mtu } else { 0 }
}

fn device_limits(attr: &ibv_device_attr) -> Value {
    json!({
        "vendor_id": attr.vendor_id, "vendor_part_id": attr.vendor_part_id, "hw_ver": attr.hw_ver,
        "max_mr_size": attr.max_mr_size, "max_qp": attr.max_qp, "max_qp_wr": attr.max_qp_wr,
        "max_sge": attr.max_sge, "max_sge_rd": attr.max_sge_rd, "max_cq": attr.max_cq,
        "max_cqe": attr.max_cqe, "max_mr": attr.max_mr, "max_pd": attr.max_pd,
        "max_qp_rd_atom": attr.max_qp_rd_atom, "max_qp_init_rd_atom": attr.max_qp_init_rd_atom,
        "max_res_rd_atom": attr.max_res_rd_atom, "atomic_cap": attr.atomic_cap, "max_mw": attr.max_mw,
        "max_ah": attr.max_ah, "max_srq": attr.max_srq, "max_srq_wr": attr.max_srq_wr,
        "max_srq_sge": attr.max_srq_sge, "max_mcast_grp": attr.max_mcast_grp, "max_pkeys": attr.max_pkeys,
        "device_cap_flags": attr.device_cap_flags, "local_ca_ack_delay": attr.local_ca_ack_delay,
    })
}
