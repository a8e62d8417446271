//! [`roxe`] for programs with tokio: its blocking waits as futures.
//!
//! [`Connection`] and [`Listener`] connect and accept with time limits, as tokio's TCP types do
//! with [`tokio::time::timeout`]. [`Completions`] is a stream. [`Events`] are the single events of
//! the connection manager, and [`AsyncEvents`] those of queues and ports. All other operations,
//! such as posting, never wait and use the types of [`roxe`] directly.
//!
//! ```
//! use roxe::{Access, WcOpcode, WorkRequest};
//! use roxe_tokio::Connection;
//! use std::time::Duration;
//!
//! /// Sends a message to a server, and returns the answer.
//! async fn ask(server: std::net::SocketAddr, question: &[u8]) -> Result<Vec<u8>, roxe::Error> {
//!     let connection = Connection::connect(server, Duration::from_secs(5)).await?;
//!     let qp = connection.qp();
//!     let inbox = qp.pd().alloc_mr(4096, Access::LOCAL_WRITE)?;
//!     qp.post_recv(1, &[inbox.slice(..)?])?;
//!     qp.post_send(&WorkRequest::send_inline(question))?;
//!     loop {
//!         let completion = *connection.completions().next_completion().await?.check()?;
//!         if completion.opcode() == WcOpcode::Recv {
//!             return inbox.to_vec(..completion.byte_len() as usize);
//!         }
//!     }
//! }
//! ```
//!
//! Values must be created inside a runtime with I/O enabled (`enable_io`), and time limits need
//! `enable_time`; tokio panics otherwise. A future may be dropped at any time without losing an
//! event: the next future returns it.
//!
//! `examples/tokio_echo.rs` serves many connections in one thread. A program with another event
//! loop does not need this crate: the channels of [`roxe`] have a descriptor that is readable while
//! events are pending, and a method that takes an event without waiting.
#![deny(missing_docs)]

mod connection;

pub use connection::{Connection, Listener};

use futures_core::Stream;
use roxe::cm::{CmEvent, CmEventKind, EventChannel};
use roxe::{AsyncEvent, CompletionChannel, CompletionQueue, Context, EnvironmentError, Error, WorkCompletion};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::task::{Poll, ready};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// An event channel of the connection manager.
#[derive(Debug)]
pub struct Events(AsyncFd<EventChannel>);

impl Events {
    /// Registers `channel` with tokio.
    ///
    /// # Errors
    /// [`EnvironmentError::EventLoop`] if tokio cannot watch the descriptor.
    ///
    /// # Panics
    /// Panics outside a tokio runtime with I/O enabled.
    pub fn new(channel: EventChannel) -> Result<Self, Error> {
        Ok(Self(watched(channel)?))
    }

    /// Returns the channel, to create ids on.
    pub fn channel(&self) -> &EventChannel {
        self.0.get_ref()
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// [`EnvironmentError::EventLoop`] when the runtime ends.
    pub async fn next_event(&self) -> Result<CmEvent, Error> {
        until(&self.0, EventChannel::try_next).await
    }

    /// Waits for the next event, which must be of this kind.
    ///
    /// # Errors
    /// Errors of [`next_event`](Self::next_event) and [`CmEvent::expect`].
    pub async fn expect(&self, kind: CmEventKind) -> Result<CmEvent, Error> {
        self.next_event().await?.expect(kind)
    }
}

/// A completion queue with its own channel.
#[derive(Debug)]
pub struct Completions {
    cq: CompletionQueue,
    channel: AsyncFd<CompletionChannel>,
}

impl Completions {
    /// Creates a queue for at least `cqe` completions.
    ///
    /// # Errors
    /// Errors of [`Context::create_comp_channel`] and [`Context::create_cq`];
    /// [`EnvironmentError::EventLoop`] if tokio cannot watch the descriptor.
    ///
    /// # Panics
    /// Panics outside a tokio runtime with I/O enabled.
    pub fn create(context: &Context, cqe: u32) -> Result<Self, Error> {
        let channel = context.create_comp_channel()?;
        Ok(Self { cq: context.create_cq_with_channel(cqe, &channel)?, channel: watched(channel)? })
    }

    /// Returns the queue, to create queue pairs with.
    pub const fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// Waits for the next completion. Does not yield to other tasks while completions are queued.
    ///
    /// # Errors
    /// Errors of [`CompletionQueue::poll`]; [`EnvironmentError::EventLoop`] when the runtime ends.
    /// A completion with a failed status is not an error here: see [`WorkCompletion::check`].
    pub async fn next_completion(&self) -> Result<WorkCompletion, Error> {
        loop {
            if let Some(completion) = self.try_next()? {
                return Ok(completion);
            }
            // Completions queued before arming raise no event.
            self.cq.req_notify(false);
            if let Some(completion) = self.try_next()? {
                return Ok(completion);
            }
            until(&self.channel, CompletionChannel::try_get_event).await?;
        }
    }

    /// Returns the next completion; `None` if none is queued.
    ///
    /// # Errors
    /// Errors of [`CompletionQueue::poll`].
    pub fn try_next(&self) -> Result<Option<WorkCompletion>, Error> {
        Ok(self.cq.poll(&mut [WorkCompletion::default()])?.first().copied())
    }
}

/// An endless stream of completions. Its errors are those of [`Completions::next_completion`].
impl Stream for Completions {
    type Item = Result<WorkCompletion, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(found) = self.try_next().transpose() {
                return Poll::Ready(Some(found));
            }
            // Completions queued before arming raise no event.
            self.cq.req_notify(false);
            if let Some(found) = self.try_next().transpose() {
                return Poll::Ready(Some(found));
            }
            match ready!(self.channel.poll_read_ready(cx)) {
                Err(cause) => return Poll::Ready(Some(Err(EnvironmentError::EventLoop(cause).into()))),
                Ok(mut guard) if self.channel.get_ref().try_get_event().is_none() => guard.clear_ready(),
                Ok(_) => {}
            }
        }
    }
}

/// Asynchronous events of the queues and the port of a context.
#[derive(Debug)]
pub struct AsyncEvents(AsyncFd<Watch>);

#[derive(Debug)]
struct Watch(Context);

impl AsRawFd for Watch {
    fn as_raw_fd(&self) -> RawFd {
        self.0.async_fd().as_raw_fd()
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.async_fd()
    }
}

impl AsyncEvents {
    /// Registers the descriptor of asynchronous events of `context` with tokio.
    ///
    /// # Errors
    /// [`EnvironmentError::EventLoop`] if tokio cannot watch the descriptor.
    ///
    /// # Panics
    /// Panics outside a tokio runtime with I/O enabled.
    pub fn new(context: &Context) -> Result<Self, Error> {
        Ok(Self(watched(Watch(context.clone()))?))
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// [`EnvironmentError::EventLoop`] when the runtime ends.
    pub async fn next_event(&self) -> Result<AsyncEvent, Error> {
        until(&self.0, |watch| watch.0.try_next_async_event()).await
    }
}

fn watched<T: AsFd + AsRawFd>(channel: T) -> Result<AsyncFd<T>, Error> {
    // SAFETY: `AsFd` guarantees that the descriptor is open as long as the channel lives. For all
    // three types of callers, `AsRawFd` always returns the same descriptor.
    let watched = unsafe { AsyncFd::register_with_interest(channel, Interest::READABLE) };
    watched.map_err(|refused| EnvironmentError::EventLoop(refused.into()).into())
}

/// Waits until `take` returns an event of `channel`.
async fn until<T: AsRawFd, R>(channel: &AsyncFd<T>, take: impl Fn(&T) -> Option<R>) -> Result<R, Error> {
    loop {
        let mut ready = channel.readable().await.map_err(EnvironmentError::EventLoop)?;
        match take(channel.get_ref()) {
            Some(found) => return Ok(found),
            None => ready.clear_ready(),
        }
    }
}
