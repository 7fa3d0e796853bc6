//! One socket that blocks: a request, its reply, the next request.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{Dialect, address, refused};
use lock_bench_worker::Lib;

pub(crate) struct Raw<D> {
    socket: Mutex<TcpStream>,
    dialect: D,
}

impl<D: Dialect> Raw<D> {
    pub(crate) fn connect(url: &str) -> Result<Self, String> {
        let mut socket = TcpStream::connect(address::<D>(url)?).map_err(|e| e.to_string())?;
        socket.set_nodelay(true).map_err(|e| e.to_string())?;
        let reply = exchange::<D>(&mut socket, &D::greeting())?;
        let dialect = D::greeted(&reply).ok_or_else(|| refused(&reply))?;
        Ok(Self { socket: Mutex::new(socket), dialect })
    }

    fn ask(&self, request: &[u8]) -> Result<Vec<u8>, String> {
        exchange::<D>(&mut self.socket.lock().unwrap_or_else(PoisonError::into_inner), request)
    }
}

fn exchange<D: Dialect>(socket: &mut TcpStream, request: &[u8]) -> Result<Vec<u8>, String> {
    socket.write_all(request).map_err(|e| e.to_string())?;
    let (mut reply, mut chunk) = (Vec::new(), [0; 4096]);
    while D::length(&reply).is_none() {
        match socket.read(&mut chunk) {
            Ok(0) => return Err("the server has closed the connection".into()),
            Ok(length) => reply.extend_from_slice(&chunk[..length]),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(reply)
}

impl<D: Dialect> Lib for Raw<D> {
    type Lock = String;
    type Held = D::Held;

    fn lock(&self, name: &str) -> Result<String, String> {
        Ok(name.to_owned())
    }

    async fn acquire(&self, key: &String, ttl: Duration) -> Result<D::Held, String> {
        let (request, owner) = self.dialect.acquire(key, ttl);
        let reply = self.ask(&request)?;
        self.dialect.acquired(key, owner, &reply).ok_or_else(|| refused(&reply))
    }

    async fn release(&self, held: D::Held) -> Result<(), String> {
        let reply = self.ask(&self.dialect.release(&held))?;
        self.dialect.released(&reply).then_some(()).ok_or_else(|| refused(&reply))
    }
}
