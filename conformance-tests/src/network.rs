//! The network of a lock space: a proxy for each of its servers, which the checks break together.

use std::future::{IntoFuture, poll_fn};
use std::io;
use std::iter;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;

use crate::proxy::{Count, Direction, Fault, Held, Hit, Match, Proxy};

type Work<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + Send + 'a>>;

/// Proxies of one server, or of servers of which each request needs a majority.
///
/// With several servers, a fault is on all proxies, or on as many as [`breaking`](Self::breaking)
/// says. An awaited event counts when it has happened on so many that no majority is without it.
#[derive(Debug)]
pub struct Network {
    proxies: Vec<Proxy>,
    broken: usize,
}

impl Network {
    /// Makes a network with a proxy of this server.
    ///
    /// # Panics
    ///
    /// Panics if no port, thread or file descriptor is left.
    #[must_use]
    pub fn to(server: SocketAddr) -> Self {
        Self::to_each([server])
    }

    /// Makes a network with a proxy of each server, where every request needs a majority.
    ///
    /// # Panics
    ///
    /// Panics if no port, thread or file descriptor is left.
    #[must_use]
    pub fn to_each(servers: impl IntoIterator<Item = SocketAddr>) -> Self {
        let proxy = |server| Proxy::start(server).expect("a proxy can be started");
        Self::from_iter(servers.into_iter().map(proxy))
    }

    /// Limits faults to the first `broken` proxies: a majority of them, or more.
    ///
    /// # Panics
    ///
    /// Panics if `broken` is a minority, which breaks nothing, or more than there are.
    #[must_use]
    pub fn breaking(mut self, broken: usize) -> Self {
        let size = self.proxies.len();
        assert!(broken > size / 2 && broken <= size, "{broken} proxies of {size}");
        self.broken = broken;
        self
    }

    /// Returns the address of each server's proxy.
    pub fn addrs(&self) -> impl Iterator<Item = SocketAddr> {
        self.proxies.iter().map(Proxy::addr)
    }

    /// Returns the address of the first server's proxy.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.proxies[0].addr()
    }

    /// Sets a fault, as [`Proxy::set`] does.
    pub fn set(&self, fault: Fault) {
        self.broken().for_each(|proxy| proxy.set(fault));
    }

    /// Ends all faults, as [`Proxy::heal`] does.
    pub fn heal(&self) {
        self.broken().for_each(Proxy::heal);
    }

    /// Cuts the first matching request of each proxy, as [`Proxy::cut_after`] does.
    pub fn cut_after(&self, request: impl Into<Match>) -> Hits {
        let request = request.into();
        self.hits(|proxy| proxy.cut_after(request.clone()))
    }

    /// Forges the answer to the first matching request of each proxy, as [`Proxy::forge`] does.
    pub fn forge(&self, request: impl Into<Match>, answer: &[u8]) -> Hits {
        let request = request.into();
        self.hits(|proxy| proxy.forge(request.clone(), answer))
    }

    /// Holds the first matching request of each proxy, as [`Proxy::hold`] does.
    pub fn hold(&self, request: impl Into<Match>) -> Holds {
        let request = request.into();
        let each = self.broken().map(|proxy| proxy.hold(request.clone())).collect();
        Holds { each, enough: self.enough() }
    }

    /// Counts matching requests, as [`Proxy::count`] does.
    pub fn count(&self, request: impl Into<Match>) -> Counts {
        let request = request.into();
        let each = self.broken().map(|proxy| proxy.count(request.clone())).collect();
        Counts { each, enough: self.enough() }
    }

    /// Resets all connections, as [`Proxy::reset_connections`] does.
    ///
    /// # Cancel safety
    ///
    /// The connections of some proxies may not be reset if the future is dropped.
    pub async fn reset_connections(&self) {
        for proxy in self.broken() {
            proxy.reset_connections().await;
        }
    }

    /// Closes one direction of all connections, as [`Proxy::half_close`] does.
    pub fn half_close(&self, direction: Direction) {
        self.broken().for_each(|proxy| proxy.half_close(direction));
    }

    fn hits(&self, arm: impl Fn(&Proxy) -> Hit) -> Hits {
        Hits { each: self.broken().map(arm).collect(), enough: self.enough() }
    }

    fn from_iter(proxies: impl Iterator<Item = Proxy>) -> Self {
        let proxies: Vec<_> = proxies.collect();
        Self { broken: proxies.len(), proxies }
    }

    fn broken(&self) -> impl Iterator<Item = &Proxy> {
        self.proxies.iter().take(self.broken)
    }

    /// Returns the least number of broken proxies among any majority of the servers.
    fn enough(&self) -> usize {
        let majority = self.proxies.len() / 2 + 1;
        self.broken + majority - self.proxies.len()
    }
}

/// A network of one proxy, which may lead to several servers that act as one: see [`Proxy::also`].
impl From<Proxy> for Network {
    fn from(proxy: Proxy) -> Self {
        Self::from_iter(iter::once(proxy))
    }
}

/// Armed cuts or forgeries.
///
/// Awaiting them resolves when enough have happened, and disarms the others. It fails if too many
/// connections have ended before.
#[derive(Debug)]
#[must_use = "dropped, it calls the faults off"]
pub struct Hits {
    each: Vec<Hit>,
    enough: usize,
}

impl IntoFuture for Hits {
    type Output = io::Result<()>;
    type IntoFuture = Work<'static>;

    fn into_future(self) -> Self::IntoFuture {
        let each = self.each.into_iter().map(Hit::into_future).collect();
        Box::pin(enough_of(self.enough, each))
    }
}

/// Holds for one request on each proxy; dropping them acts as described at [`Held`].
#[derive(Debug)]
#[must_use = "dropped, it holds nothing"]
pub struct Holds {
    each: Vec<Held>,
    enough: usize,
}

impl Holds {
    /// Waits until enough of the requests are held.
    ///
    /// # Errors
    ///
    /// Fails if the proxies have ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn caught(&mut self) -> io::Result<()> {
        let each = self.each.iter_mut().map(|held| Box::pin(held.caught()) as Work<'_>);
        enough_of(self.enough, each.collect()).await
    }

    /// Delivers the held requests, as [`Held::deliver`] does, and disarms the other holds.
    ///
    /// Waits until each request is written to its server's socket, or lost.
    ///
    /// # Errors
    ///
    /// Fails if all of them are lost.
    ///
    /// # Cancel safety
    ///
    /// Requests that are not delivered when the future is dropped stay undelivered.
    pub async fn deliver(&mut self) -> io::Result<()> {
        self.each.retain(Held::is_caught);
        let mut ended = Err(io::ErrorKind::NotFound.into());
        for held in &mut self.each {
            ended = held.deliver().await.or(ended);
        }
        ended
    }

    /// Waits until each server has sent something after the delivery, or its connection has ended.
    ///
    /// # Errors
    ///
    /// Fails if no server has sent anything.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn answered(&mut self) -> io::Result<()> {
        let mut ended = Err(io::ErrorKind::NotFound.into());
        for held in &mut self.each {
            ended = held.answered().await.or(ended);
        }
        ended
    }
}

/// Counts of requests, one on each proxy.
#[derive(Debug)]
#[must_use = "dropped, it counts no more"]
pub struct Counts {
    each: Vec<Count>,
    enough: usize,
}

impl Counts {
    /// Waits until a request has matched on enough of the proxies.
    ///
    /// # Errors
    ///
    /// Fails if the proxies have ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn begin(&mut self) -> io::Result<()> {
        let each = self.each.iter_mut().map(|count| Box::pin(count.reaches(1)) as Work<'_>);
        enough_of(self.enough, each.collect()).await
    }
}

/// Waits until so many have succeeded, or cannot any more.
async fn enough_of(enough: usize, mut each: Vec<Work<'_>>) -> io::Result<()> {
    let (mut well, mut failed) = (0, None);
    poll_fn(|cx| {
        each.retain_mut(|work| match work.as_mut().poll(cx) {
            Poll::Pending => true,
            Poll::Ready(Ok(())) => {
                well += 1;
                false
            }
            Poll::Ready(Err(error)) => {
                failed = Some(error);
                false
            }
        });
        if well >= enough {
            return Poll::Ready(Ok(()));
        }
        match failed.take_if(|_| well + each.len() < enough) {
            Some(error) => Poll::Ready(Err(error)),
            None => Poll::Pending,
        }
    })
    .await
}
