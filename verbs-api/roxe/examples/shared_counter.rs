//! A server with a counter in its memory, and clients that draw numbers from it by FETCH_ADD. No
//! number is drawn twice, and the server's program sleeps while clients draw.
//!
//! ```sh
//! cargo run -p roxe --example shared_counter 127.0.0.1:7471 serve    # one terminal
//! cargo run -p roxe --example shared_counter 127.0.0.1:7471          # another, or several
//! ```

use roxe::cm::{Connection, Listener};
use roxe::{Access, RemoteAddr, WorkRequest};
use std::time::Duration;

fn main() -> Result<(), roxe::Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [address, "serve"] => serve(&Listener::bind(address)?, usize::MAX),
        [address] => {
            let numbers = draw(address, 3)?;
            println!("drew {numbers:?}");
            Ok(())
        }
        _ => {
            eprintln!("usage: shared_counter ADDRESS:PORT [serve]");
            std::process::exit(2)
        }
    }
}

/// Serves the counter to `clients` clients, one after the other.
pub(crate) fn serve(listener: &Listener, clients: usize) -> Result<(), roxe::Error> {
    let mut drawn = 0;
    for _ in 0..clients {
        let incoming = listener.next_request()?;
        let context = incoming.id().context()?;
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
        let counter = pd.alloc_mr(8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
        counter.store_u64(0, drawn)?;
        let qp = pd.create_qp(&cq, &cq).build_on(incoming.id())?;
        // The answer carries the address and key of the counter as text.
        let mut answer = incoming.answer();
        answer.private_data = counter.remote().to_string().into_bytes();
        incoming.accept(qp, &answer)?.wait_disconnected()?;
        drawn = counter.load_u64(0)?;
    }
    Ok(())
}

/// Draws `count` numbers from the server at `address`.
pub(crate) fn draw(address: &str, count: usize) -> Result<Vec<u64>, roxe::Error> {
    let connection = Connection::connect(address)?;
    let counter: RemoteAddr = String::from_utf8_lossy(connection.private_data()).parse()?;
    let qp = connection.qp();
    let old = qp.pd().alloc_mr(8, Access::LOCAL_WRITE)?;
    let mut numbers = Vec::new();
    for _ in 0..count {
        qp.post_send(&WorkRequest::fetch_add(&[old.slice(..)?], counter, 1).signaled())?;
        qp.send_cq().wait(Duration::from_secs(5))?.check()?;
        numbers.push(old.load_u64(0)?);
    }
    connection.disconnect()?;
    Ok(numbers)
}
