//! One blocking socket: a request, its reply, the next request.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};

use super::{Length, Transport};

pub(crate) struct Raw {
    socket: Mutex<TcpStream>,
    length: Length,
}

impl Transport for Raw {
    async fn connect(address: &str, length: Length) -> Result<Self, String> {
        let socket = TcpStream::connect(address).map_err(|e| e.to_string())?;
        socket.set_nodelay(true).map_err(|e| e.to_string())?;
        Ok(Self { socket: Mutex::new(socket), length })
    }

    async fn ask(&self, request: &[u8]) -> Result<Vec<u8>, String> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket.write_all(request).map_err(|e| e.to_string())?;
        let (mut reply, mut chunk) = (Vec::new(), [0; 4096]);
        while (self.length)(&reply).is_none() {
            match socket.read(&mut chunk) {
                Ok(0) => return Err("the server has closed the connection".into()),
                Ok(length) => reply.extend_from_slice(&chunk[..length]),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(reply)
    }
}
