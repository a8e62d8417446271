//! The ranks of locks, and the table of them: the lock order.

/// The place of a lock in the order.
pub trait Rank: Send + Sync + 'static {
    /// Lower ones are further out. No two ranks have the same one.
    const LEVEL: u16;
    /// The name in the table.
    const NAME: &'static str;
}

/// Declares ranks, outermost first. The first one has this level, which leaves room for the tables
/// of other crates: each crate's levels are below those of the crates that it uses.
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
    /// `engine::thread`: held by the background thread while it has its engine, that is, while it
    /// does anything.
    ThreadTurn,
    /// `cm::agent`: the connection manager of an engine. Receivers only try it, and leave messages
    /// in its inbox.
    CmAgent,
    /// `cm::id`: one identifier.
    CmId,
    /// `cm::id`: where the events of one identifier go.
    CmIdChannel,
    /// `cm::multicast` and `steering`: the memberships of a raw packet queue pair.
    FlowGroups,
    /// `wq`: changes of the state of a work queue.
    WqModify,
    /// `device`: the devices that were given out.
    Devices,
    /// `fork`: the engines of this process.
    Engines,
    /// `engine::further`: held while one more engine of a device is made.
    MakingEngines,
    /// `engine`: the start of an engine and the follower of its interface.
    Starting,
    /// `engine::interceptor`: the start of captures and fault rules.
    InterceptorStarting,
    /// `device`: the contexts that want to hear of the port; also held while its new addresses are
    /// opened.
    Contexts,
    /// `engine::rx`: the receive side, held while packets are handed to queue pairs and those
    /// answer. Pollers only try it.
    Rx,
    /// `engine::table`: queue pairs by number.
    QpTable,
    /// `qp`: one queue pair.
    Qp,
    /// `engine::rings`: the writing half of one ring, held while a batch is built in it.
    RingSender,
    /// `engine::interceptor`: the rules that spoil packets.
    Faults,
    /// `engine::interceptor`: the capture file, for a batch of packets.
    Capture,
    /// `mr`: the description of one region, while it is registered anew.
    Registration,
    /// `mr`: the table of keys, read while bytes are copied, mostly for all packets of a visit.
    Memory,
    /// `weakest`: the atomics of the weakest legal card.
    CardAtomics,
    /// `dm`: the block of device memory.
    DeviceMemory,
    /// `engine::table`: the slots of this process.
    OwnedSlots,
    /// `xrcd`: the domains that files name.
    XrcNames,
    /// `srq`: the shared receive queues of an XRC domain.
    XrcQueues,
    /// `xrcd`: the targets of a domain.
    XrcTargets,
    /// `srq`: one shared receive queue.
    Srq,
    /// `cq`: one completion queue.
    Cq,
    /// `cq`: held while an event is announced, so that none comes once the queue is destroyed.
    CqChannel,
    /// `comp_channel`: the engines that complete in one queue or announce on one channel.
    EngineSet,
    /// `flow`: the windows by destination.
    Flows,
    /// `flow`: what is known of the receiver behind one window.
    FlowReceiver,
    /// `engine::rings`: the rings to other processes, by slot.
    RingsOut,
    /// `engine::rings`: the rings from other processes.
    RingsIn,
    /// `engine::rings`: the rings with waiters.
    RingsFull,
    /// `flow`: the queue pairs that have room again.
    FlowReady,
    /// `flow`: the queue pairs that wait for room in one window.
    FlowWaiters,
    /// `flow`: what is owed to senders.
    FlowCredits,
    /// `engine`: the links by address.
    Links,
    /// `engine::send_room`: what raw packet queue pairs send by.
    FrameSenders,
    /// `engine`: the addresses of this host.
    HostAddresses,
    /// `engine::next_hops`: the ways to other hosts that were found.
    NextHops,
    /// `device`: the description of the port.
    Port,
    /// `cm::agent`: what waits for the connection manager.
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
    /// `net::link`: what waits for room in the send buffer of one socket, held while it is
    /// sent.
    TxQueue,
    /// `net::udp`: destinations to which the kernel does not cut sends into packets.
    Segments,
    /// Uses of an object by another one, which end when it is destroyed.
    Uses,
    /// `inventory`: the objects of one context.
    Inventory,
    /// `steering`: what flow counters count.
    FlowCounters,
    /// `live`: the counters that were told last.
    Told,
    /// `engine::counters`: what went through each ring.
    RingCounts,
    /// `stats_file`: the file that says what this process counted.
    StatsFile,
    /// `event`: events that wait for the program.
    Events,
    /// `engine::interceptor`: packets that are held back.
    Delayed,
    /// `timers`: deadlines.
    Timers,
    /// `engine::thread`: the handle to join the thread by.
    ThreadHandle,
    /// `engine`: the background thread; innermost, so that it can be woken under any lock.
    Thread,
    /// `check::trace`: the file of the trace, held while it is written.
    TraceFile,
    /// `check::trace`: what is not in the file yet, and what its tracks show.
    Trace,
    /// `check`: what the checker knows of the program.
    Checker,
    /// `check`: where its reports go, held while one is written.
    CheckReports,
    /// `check::faults`: the rules about calls, and what was counted.
    CallFaults,
    /// `engine::reasons`: the file that says why packets of peers were dropped.
    Reasons,
    /// `check`: which explanations were given.
    Explained,
    /// `exit`: what is done when the process ends.
    ExitTasks,
}
