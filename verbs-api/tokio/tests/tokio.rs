//! The example with tokio, as a test: what the documentation promises about event loops.

#[allow(dead_code)] // Its `main` is for the command line.
#[path = "../examples/tokio_echo.rs"]
mod example;

use tokio::runtime::Builder;

#[test]
fn one_thread_serves_many_connections() {
    let runtime = Builder::new_current_thread().enable_io().build().unwrap();
    assert_eq!(runtime.block_on(example::demo()).unwrap(), 800);
}
