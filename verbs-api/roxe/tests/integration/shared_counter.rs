//! Runs the example as a test.

#[allow(dead_code)] // `main` is not called here.
#[path = "../../examples/shared_counter.rs"]
mod example;

use roxe::cm::Listener;

#[test]
fn clients_draw_every_number_once() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().to_string();
    let server = std::thread::spawn(move || example::serve(&listener, 2));
    assert_eq!(example::draw(&address, 3).unwrap(), [0, 1, 2]);
    assert_eq!(example::draw(&address, 2).unwrap(), [3, 4]);
    server.join().unwrap().unwrap();
}
