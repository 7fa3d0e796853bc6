//! Real servers for the tests, and helpers.

use lock_memcache::Memcached;
pub(crate) use test_servers::Memcached as Server;
use test_servers::MemcachedOptions;

pub(crate) fn start() -> Server {
    Server::start(MemcachedOptions::new())
}

pub(crate) async fn client(server: &Server) -> Memcached {
    Memcached::connect(server.url()).await.expect("the server takes us")
}
