//! The ranks of locks. Their table is the lock order.

/// The position of a lock in the lock order.
pub trait Rank: Send + Sync + 'static {
    /// Unique; lower levels are further out.
    const LEVEL: u16;
    /// Module and name of the rank.
    const NAME: &'static str;
}

/// Declares ranks, outermost first. The first has the level `$first`, the others follow. A crate's
/// levels are below those of the crates that it uses.
#[macro_export]
macro_rules! ranks {
    ($vis:vis, $first:literal.. ; $($(#[$doc:meta])* $name:ident,)*) => {
        #[repr(u16)]
        enum Order {
            $($name,)*
        }
        $(
            $(#[$doc])*
            #[derive(Debug)]
            $vis enum $name {}

            impl $crate::lock::rank::Rank for $name {
                const LEVEL: u16 = $first + Order::$name as u16;
                const NAME: &'static str = concat!(module_path!(), "::", stringify!($name));
            }
        )*
    };
}

crate::ranks! { pub, 10_000.. ;
    /// `engine::thread`: held by the background thread while it holds its engine, so while it
    /// works.
    ThreadTurn,
    /// `cm::agent`: the connection manager of an engine. Receivers only try it, and leave messages
    /// in its inbox.
    CmAgent,
    /// `cm::id`: one identifier.
    CmId,
    /// `cm::id`: the channel for the events of one identifier.
    CmIdChannel,
    /// `cm::multicast` and `steering`: the memberships of a raw packet queue pair.
    FlowGroups,
    /// `wq`: changes of the state of a work queue.
    WqModify,
    /// `device`: the open devices.
    Devices,
    /// `fork`: the engines of this process.
    Engines,
    /// `engine::further`: held while a further engine of a device is created.
    MakingEngines,
    /// `engine`: the start of an engine and the follower of its interface.
    Starting,
    /// `engine::interceptor`: the start of captures and fault rules.
    InterceptorStarting,
    /// `device`: the contexts that get port events; also held while links on new addresses open.
    Contexts,
    /// `engine::rx`: the receive side, held while queue pairs process packets and answer. Pollers
    /// only try it.
    Rx,
    /// `engine::table`: queue pairs by number.
    QpTable,
    /// `qp`: one queue pair.
    Qp,
    /// `engine::rings`: the writing half of one ring, held while a batch is built in it.
    RingSender,
    /// `engine::interceptor`: the fault rules for packets.
    Faults,
    /// `engine::interceptor`: the capture file, for a batch of packets.
    Capture,
    /// `mr`: the description of one region, held while it is re-registered.
    Registration,
    /// `mr`: the table of keys, read-locked while bytes are copied, usually for a batch of packets.
    Memory,
    /// `weakest`: the atomics of the weakest legal card.
    CardAtomics,
    /// `dm`: the block of device memory.
    DeviceMemory,
    /// `engine::table`: the slots of this process.
    OwnedSlots,
    /// `xrcd`: the XRC domains that files identify.
    XrcNames,
    /// `srq`: the shared receive queues of an XRC domain.
    XrcQueues,
    /// `xrcd`: the targets of a domain.
    XrcTargets,
    /// `srq`: one shared receive queue.
    Srq,
    /// `cq`: one completion queue.
    Cq,
    /// `cq`: held while an event is announced, so that none follows the destruction of the queue.
    CqChannel,
    /// `comp_channel`: the engines that complete in one queue or announce on one channel.
    EngineSet,
    /// `flow`: the windows by destination.
    Flows,
    /// `flow`: the state of the receiver behind one window.
    FlowReceiver,
    /// `engine::rings`: the rings to other processes, by slot.
    RingsOut,
    /// `engine::rings`: the rings from other processes.
    RingsIn,
    /// `engine::rings`: the rings with waiters.
    RingsFull,
    /// `flow`: the queue pairs whose window has room again.
    FlowReady,
    /// `flow`: the queue pairs that wait for room in one window.
    FlowWaiters,
    /// `flow`: the credits owed to senders.
    FlowCredits,
    /// `engine`: the links by address.
    Links,
    /// `engine::send_room`: the frame senders of raw packet queue pairs.
    FrameSenders,
    /// `engine`: the addresses of this host.
    HostAddresses,
    /// `engine::next_hops`: the resolved next hops to other hosts.
    NextHops,
    /// `device`: the description of the port.
    Port,
    /// `cm::agent`: messages for the connection manager.
    CmInbox,
    /// `cm::ports`: exclusive owners of ports.
    PortAlone,
    /// `cm::ports`: the sockets that stand for ports.
    PortNames,
    /// `cm::ports`: the ports that clients use.
    PortsInUse,
    /// `inventory`: the contexts of this process.
    Inventories,
    /// `cm::follow`: all identifiers.
    CmIds,
    /// `net::port_owners`: the source port of packets to this host, held while processes agree on
    /// it.
    LocalPort,
    /// `net::runtime_dir`: the names of this process in the runtime directory.
    RuntimeDir,
    /// `net::link`: packets that wait for room in the send buffer of one socket, held while they
    /// are sent.
    TxQueue,
    /// `net::udp`: destinations to which the kernel does not cut sends into packets.
    Segments,
    /// Uses of one object by another, which end when the user is destroyed.
    Uses,
    /// `inventory`: the objects of one context.
    Inventory,
    /// `steering`: the flow counters.
    FlowCounters,
    /// `observe::counter_files`: the counters in the file of this process.
    CountersWritten,
    /// `engine::counters`: the traffic of each ring.
    RingCounts,
    /// `stats_file`: the statistics file of this process.
    StatsFile,
    /// `event`: events that wait for the program.
    Events,
    /// `engine::interceptor`: delayed packets.
    Delayed,
    /// `timers`: deadlines.
    Timers,
    /// `engine::thread`: the handle to join the thread by.
    ThreadHandle,
    /// `engine`: the background thread; innermost, so that it can be woken under any lock.
    Thread,
    /// `check::trace`: the trace file, held while it is written.
    TraceFile,
    /// `check::trace`: unwritten events, and the state of the tracks.
    Trace,
    /// `check`: the checker's model of the program.
    Checker,
    /// `check`: the destination of reports, held while one is written.
    CheckReports,
    /// `check::faults`: the fault rules for calls, and their counts.
    CallFaults,
    /// `engine::reasons`: the file of reasons for dropped packets of peers.
    Reasons,
    /// `check`: the explanations already printed.
    Explained,
    /// `exit`: the tasks for the end of the process.
    ExitTasks,
}
