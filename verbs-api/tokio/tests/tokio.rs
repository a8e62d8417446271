//! Tests of connections, completions and time limits with tokio, and a run of the example.

#[allow(dead_code)] // `main` is not called here.
#[path = "../examples/tokio_echo.rs"]
mod example;

use futures_core::Stream;
use roxe::{Access, Error, PeerError, WcOpcode, WorkRequest};
use roxe_tokio::{Completions, Connection, Listener};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;
use tokio::runtime::Builder;

/// Time limit that no passing test reaches.
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// Time limit that expires.
const SHORT_TIME_LIMIT: Duration = Duration::from_millis(50);

fn run<T>(test: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn is_timeout<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Peer(PeerError::ConnectTimeout(_))))
}

async fn next(completions: &mut Completions) -> roxe::WorkCompletion {
    let item = poll_fn(|cx| Pin::new(&mut *completions).poll_next(cx)).await;
    *item.unwrap().unwrap().check().unwrap()
}

#[test]
fn accepted_connection_streams_completions_until_disconnect() {
    run(async {
        let listener = Listener::bind(any_port()).unwrap();
        let address = listener.local_addr();
        let server = async move {
            let mut connection = listener.accept(TIME_LIMIT).await.unwrap();
            connection.qp().post_send(&WorkRequest::send_inline(b"hello").signaled()).unwrap();
            assert_eq!(next(connection.completions_mut()).await.opcode(), WcOpcode::Send);
            connection.disconnected().await.unwrap();
        };
        let server = tokio::spawn(server);
        let mut connection = Connection::connect(address, TIME_LIMIT).await.unwrap();
        let inbox = connection.qp().pd().alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
        connection.qp().post_recv(1, &[inbox.slice(..).unwrap()]).unwrap();
        let received = next(connection.completions_mut()).await;
        assert_eq!((received.opcode(), inbox.to_vec(..5).unwrap()), (WcOpcode::Recv, b"hello".to_vec()));
        connection.disconnect(TIME_LIMIT).await.unwrap();
        server.await.unwrap();
    });
}

#[test]
fn listener_accepts_after_timeout_of_earlier_accept() {
    run(async {
        let listener = Listener::bind(any_port()).unwrap();
        assert!(is_timeout(&listener.accept(SHORT_TIME_LIMIT).await));
        let address = listener.local_addr();
        let client = tokio::spawn(Connection::connect(address, TIME_LIMIT));
        listener.accept(TIME_LIMIT).await.unwrap();
        client.await.unwrap().unwrap();
    });
}

#[test]
fn connect_without_answer_times_out() {
    run(async {
        let listener = Listener::bind(any_port()).unwrap();
        let result = Connection::connect(listener.local_addr(), SHORT_TIME_LIMIT).await;
        assert!(is_timeout(&result), "the listener does not accept");
    });
}

/// The example has 8 clients of 100 rounds each.
#[test]
fn example_on_one_thread_echoes_every_message() {
    let runtime = Builder::new_current_thread().enable_io().build().unwrap();
    assert_eq!(runtime.block_on(example::demo()).unwrap(), 800);
}
