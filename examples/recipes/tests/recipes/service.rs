use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

use crate::{Process, locks_in, program};

/// An instance of the service, on a port of its own.
struct Instance {
    process: Process,
    address: String,
}

impl Instance {
    fn start(locks: &str, billing: &TcpListener) -> Self {
        let mut command = program(env!("CARGO_BIN_EXE_service"), locks);
        let billing = format!("http://{}", billing.local_addr().unwrap());
        command.env("BILLING", billing).env("LISTEN", "127.0.0.1:0").stdout(Stdio::piped());
        let mut process = Process::start(&mut command);
        let mut line = String::new();
        BufReader::new(process.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect(&line).to_owned();
        Self { process, address }
    }

    fn request(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "POST {path} HTTP/1.1\r\nHost: s\r\nConnection: close\r\n\r\n").unwrap();
        stream
    }
}

/// Reads an answer, and returns its status.
fn status(mut stream: TcpStream) -> u16 {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect(&answer)
}

/// Accepts a bill, and returns its connection and its first line.
fn accept(billing: &TcpListener) -> (TcpStream, String) {
    let (stream, _) = billing.accept().unwrap();
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    (stream, line)
}

fn answer(mut stream: &TcpStream, status: &str) {
    let length = "Content-Length: 0\r\nConnection: close";
    write!(stream, "HTTP/1.1 {status}\r\n{length}\r\n\r\n").unwrap();
}

fn fence(line: &str) -> i64 {
    let (_, rest) = line.split_once("?fence=").expect(line);
    rest.split(' ').next().and_then(|number| number.parse().ok()).expect(line)
}

#[test]
fn one_of_two_requests_for_an_order_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let billing = TcpListener::bind("127.0.0.1:0").unwrap();
    let locks = locks_in(directory.path());
    let [one, two] = [(), ()].map(|()| Instance::start(&locks, &billing));

    let first = one.request("/orders/42/bill");
    let (bill, line) = accept(&billing); // the first request holds the lock until this is answered
    assert_eq!(status(one.request("/orders/42/bill")), 409);
    assert_eq!(status(two.request("/orders/42/bill")), 409);

    let other = two.request("/orders/43/bill");
    let (other_bill, other_line) = accept(&billing);
    assert!(other_line.starts_with("PUT /bills/43?fence="), "{other_line}");
    answer(&other_bill, "200 OK");
    assert_eq!(status(other), 200);
    answer(&bill, "200 OK");
    assert_eq!(status(first), 200);

    let again = two.request("/orders/42/bill");
    let (bill, newer) = accept(&billing);
    assert!(fence(&newer) > fence(&line), "{newer} {line}");
    answer(&bill, "409 Conflict"); // as to a stale token
    assert_eq!(status(again), 503);
}

#[test]
fn a_service_that_is_stopped_ends_its_request_and_releases() {
    let directory = tempfile::tempdir().unwrap();
    let billing = TcpListener::bind("127.0.0.1:0").unwrap();
    let locks = locks_in(directory.path());
    let [mut one, two] = [(), ()].map(|()| Instance::start(&locks, &billing));

    let first = one.request("/orders/42/bill");
    let (bill, _) = accept(&billing);
    one.process.signal("-TERM");
    assert_eq!(status(two.request("/orders/42/bill")), 409); // still held
    assert!(one.process.runs());
    answer(&bill, "200 OK");
    assert_eq!(status(first), 200);
    assert_eq!(one.process.status(), Some(0));

    let next = two.request("/orders/42/bill");
    answer(&accept(&billing).0, "200 OK");
    assert_eq!(status(next), 200);
}
