//! `lockctl break`: ending a hold by force.

use lock_any::backend::Holder;
use lock_any::{LockName, Locker};

use crate::cli::Break;
use crate::exit::{Exit, Failure};
use crate::look::who;
use crate::output::print;
use crate::reach::{Need, connect_for};

pub(crate) async fn break_lock(url: &str, order: &Break) -> Result<Exit, Failure> {
    let name = order.name.get();
    let needs: &[Need] = match order.owner {
        Some(_) => &[Need::Breaking],
        None => &[Need::Breaking, Need::Inspecting],
    };
    let locks = connect_for("break a lock", needs, url).await?;
    match order.owner {
        Some(owner) if locks.break_lock(name, &owner).await? => Ok(Exit::SUCCESS),
        Some(_) => Err(nothing(&format!("lock {name} is not held by this owner"))),
        None => break_the_one_seen(&locks, name).await,
    }
}

/// Ends the hold of just those who were seen: not that of who came in between.
async fn break_the_one_seen(locks: &Locker, name: &LockName) -> Result<Exit, Failure> {
    let seen = locks.inspect(name).await?.holders;
    if seen.is_empty() {
        return Err(nothing(&format!("lock {name} is free")));
    }
    let mut ended = Vec::new();
    for holder in &seen {
        let owner = holder.owner.ok_or_else(|| of_another_kind(name))?;
        if locks.break_lock(name, &owner).await? {
            ended.push(holder);
        }
    }
    if ended.is_empty() {
        return Err(nothing(&format!("lock {name} was let go by itself meanwhile")));
    }
    print(&ended.into_iter().map(|holder| line(name, holder)).collect::<String>())?;
    Ok(Exit::SUCCESS)
}

fn line(name: &LockName, holder: &Holder) -> String {
    format!("lock {name} was taken from {}\n", who(holder, false))
}

fn nothing(why: &str) -> Failure {
    Failure::new(Exit::NOTHING, format!("{why}; nothing was ended"))
}

fn of_another_kind(name: &LockName) -> Failure {
    Failure::usage(format!(
        "lock {name} is held by a client that left no owner id to compare; end its hold with that \
         client's own means"
    ))
}
