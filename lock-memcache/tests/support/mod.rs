//! Real servers for the tests, and short words for what is asked of them.

pub(crate) use conformance_tests::servers::Memcached as Server;
use conformance_tests::servers::MemcachedOptions;
use lock_memcache::Memcached;

pub(crate) fn start() -> Server {
    Server::start(MemcachedOptions::new())
}

pub(crate) async fn client(server: &Server) -> Memcached {
    Memcached::connect(server.url()).await.expect("the server takes us")
}
