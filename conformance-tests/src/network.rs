//! The network of a lock space: a line to each of its servers, which the checks break together.

use std::future::{IntoFuture, poll_fn};
use std::io;
use std::iter;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;

use crate::proxy::{Count, Direction, Fault, Held, Hit, Match, Proxy};

type Work<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + Send + 'a>>;

/// Lines to one server, or to servers of which each request is for a majority.
///
/// Where there are several, a fault is on all of them, or on as many as [`breaking`](Self::breaking) says; and
/// what is waited for has happened when it has on as many as a majority cannot do without.
#[derive(Debug)]
pub struct Network {
    lines: Vec<Proxy>,
    broken: usize,
}

impl Network {
    /// A line to this server.
    ///
    /// # Panics
    ///
    /// No port, no thread or no file descriptor is left.
    #[must_use]
    pub fn to(server: SocketAddr) -> Self {
        Self::to_each([server])
    }

    /// A line to each of these servers, of which every request is for a majority.
    ///
    /// # Panics
    ///
    /// No port, no thread or no file descriptor is left.
    #[must_use]
    pub fn to_each(servers: impl IntoIterator<Item = SocketAddr>) -> Self {
        let line = |server| Proxy::start(server).expect("a proxy can be started");
        Self::from_iter(servers.into_iter().map(line))
    }

    /// Only the first `broken` lines have faults: a majority of them, or more.
    ///
    /// # Panics
    ///
    /// It is a minority, which breaks nothing, or there are not so many.
    #[must_use]
    pub fn breaking(mut self, broken: usize) -> Self {
        let size = self.lines.len();
        assert!(broken > size / 2 && broken <= size, "{broken} lines of {size}");
        self.broken = broken;
        self
    }

    /// Where clients connect for each of the servers.
    pub fn addrs(&self) -> impl Iterator<Item = SocketAddr> {
        self.lines.iter().map(Proxy::addr)
    }

    /// Where clients connect for the first of the servers.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.lines[0].addr()
    }

    /// See [`Proxy::set`].
    pub fn set(&self, fault: Fault) {
        self.broken().for_each(|line| line.set(fault));
    }

    /// See [`Proxy::heal`].
    pub fn heal(&self) {
        self.broken().for_each(Proxy::heal);
    }

    /// See [`Proxy::cut_after`]: on each line the first request that matches.
    pub fn cut_after(&self, request: impl Into<Match>) -> Hits {
        let request = request.into();
        self.hits(|line| line.cut_after(request.clone()))
    }

    /// See [`Proxy::forge`]: on each line the first request that matches.
    pub fn forge(&self, request: impl Into<Match>, answer: &[u8]) -> Hits {
        let request = request.into();
        self.hits(|line| line.forge(request.clone(), answer))
    }

    /// See [`Proxy::hold`]: on each line the first request that matches.
    pub fn hold(&self, request: impl Into<Match>) -> Holds {
        let request = request.into();
        let each = self.broken().map(|line| line.hold(request.clone())).collect();
        Holds { each, enough: self.enough() }
    }

    /// See [`Proxy::count`].
    pub fn count(&self, request: impl Into<Match>) -> Counts {
        let request = request.into();
        let each = self.broken().map(|line| line.count(request.clone())).collect();
        Counts { each, enough: self.enough() }
    }

    /// See [`Proxy::reset_connections`].
    ///
    /// # Cancel safety
    ///
    /// The connections of some lines may not be reset if the future is dropped.
    pub async fn reset_connections(&self) {
        for line in self.broken() {
            line.reset_connections().await;
        }
    }

    /// See [`Proxy::half_close`].
    pub fn half_close(&self, direction: Direction) {
        self.broken().for_each(|line| line.half_close(direction));
    }

    fn hits(&self, arm: impl Fn(&Proxy) -> Hit) -> Hits {
        Hits { each: self.broken().map(arm).collect(), enough: self.enough() }
    }

    fn from_iter(lines: impl Iterator<Item = Proxy>) -> Self {
        let lines: Vec<_> = lines.collect();
        Self { broken: lines.len(), lines }
    }

    fn broken(&self) -> impl Iterator<Item = &Proxy> {
        self.lines.iter().take(self.broken)
    }

    /// How many of the broken lines a majority of the servers has at least.
    fn enough(&self) -> usize {
        let majority = self.lines.len() / 2 + 1;
        self.broken + majority - self.lines.len()
    }
}

/// One line, which may be that of several servers that stand for one: see [`Proxy::also`].
impl From<Proxy> for Network {
    fn from(line: Proxy) -> Self {
        Self::from_iter(iter::once(line))
    }
}

/// Cuts or forgeries that are going to happen. Resolves when enough of them have happened, and calls the others off;
/// fails if so many connections have ended before that it cannot.
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
        Box::pin(so_many(self.enough, each))
    }
}

/// Requests that are going to be held, one on each line; see [`Held`] for what dropping it does.
#[derive(Debug)]
#[must_use = "dropped, it holds nothing"]
pub struct Holds {
    each: Vec<Held>,
    enough: usize,
}

impl Holds {
    /// Waits until enough of the requests are here.
    ///
    /// # Errors
    ///
    /// The proxies are gone.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn caught(&mut self) -> io::Result<()> {
        let each = self.each.iter_mut().map(|held| Box::pin(held.caught()) as Work<'_>);
        so_many(self.enough, each.collect()).await
    }

    /// Delivers what is here, as [`Held::deliver`] does, and calls off what is not. Waits until each request is
    /// written to its server's socket, or lost.
    ///
    /// # Errors
    ///
    /// All of them are lost.
    ///
    /// # Cancel safety
    ///
    /// What has not been delivered when the future is dropped is not.
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
    /// No server has sent anything.
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

/// Counts of requests, one on each line.
#[derive(Debug)]
#[must_use = "dropped, it counts no more"]
pub struct Counts {
    each: Vec<Count>,
    enough: usize,
}

impl Counts {
    /// Waits until a request has matched on enough of the lines.
    ///
    /// # Errors
    ///
    /// The proxies are gone.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn begin(&mut self) -> io::Result<()> {
        let each = self.each.iter_mut().map(|count| Box::pin(count.reaches(1)) as Work<'_>);
        so_many(self.enough, each.collect()).await
    }
}

/// Waits until so many have ended well, or cannot any more.
async fn so_many(enough: usize, mut each: Vec<Work<'_>>) -> io::Result<()> {
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
