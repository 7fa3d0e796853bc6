//! Chapter 11: what must not be shown.

use std::error::Error as _;
use std::io;
use std::sync::{Arc, Mutex};

use lock_core::faults::{Disturbance, Verb};
use tracing_subscriber::fmt::MakeWriter;

use crate::context::{Ctx, Verdict, ensure, name};

/// Everything that was traced.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Output {
    fn note(&self, text: &str) {
        self.0.lock().unwrap().extend_from_slice(text.as_bytes());
    }

    fn shows(&self, secret: &str) -> bool {
        String::from_utf8_lossy(&self.0.lock().unwrap()).contains(secret)
    }
}

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Output {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

pub(super) async fn no_output_holds_an_owner_id(ctx: Arc<Ctx>) -> Verdict {
    use tracing_subscriber::fmt::format::FmtSpan;

    let output = Output::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(FmtSpan::FULL)
        .with_writer(output.clone())
        .finish();
    let _tracing = tracing::subscriber::set_default(subscriber);

    let client = ctx.client().await;
    let mut claim = ctx.claim(&name("raw"), false);
    let grant = ctx.win(&*client, &mut claim).await?;
    output.note(&format!("{client:?} {claim:?} {grant:?}"));
    if let Ok(state) = client.inspect(&claim.name).await {
        output.note(&format!("{state:?}"));
    }

    // A lock that is won, renewed, contended, lost and released, with errors on the way.
    let locks = ctx
        .disturbed(|call| match call.verb {
            Verb::Release => Disturbance::LoseReply,
            _ => Disturbance::None,
        })
        .await
        .build();
    let guard = locks.lock("n")?.ttl(ctx.ttl()).acquire().await?;
    let owner = *guard.owner();
    guard.verify().await?;
    output.note(&format!("{locks:?} {guard:?} {:?} {owner:?}", guard.loss_signal()));
    let second = locks.lock("n")?.ttl(ctx.ttl()).try_acquire().await?;
    ensure!(second.is_none(), "a held lock was granted");
    ctx.take_away(&name("n"), &owner).await?;
    if let Err(error) = guard.release().await {
        output.note(&format!("{error} {error:?} {:?}", error.source()));
    }
    for (secret, whose) in [(owner.expose(), "a guard's"), (claim.owner.expose(), "a claim's")] {
        ensure!(!output.shows(&secret), "{whose} owner id was shown");
    }
    ensure!(output.shows(&owner.short()), "nothing was traced, so nothing was checked");
    Ok(())
}
