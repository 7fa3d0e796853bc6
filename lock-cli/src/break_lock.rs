//! `lockctl break`: ending a hold by force.

use lock_any::backend::Holder;
use lock_any::{LockName, Locker};

use crate::cli::Break;
use crate::connect::{Capability, connect_for};
use crate::exit::{Exit, Failure};
use crate::inspect::describe;
use crate::output::print;

pub(crate) async fn break_lock(url: &str, args: &Break) -> Result<Exit, Failure> {
    let name = args.name.get();
    let needs: &[Capability] = match args.owner {
        Some(_) => &[Capability::Breaking],
        None => &[Capability::Breaking, Capability::Inspecting],
    };
    let locks = connect_for("break a lock", needs, url).await?;
    match args.owner {
        Some(owner) if locks.break_lock(name, &owner).await? => Ok(Exit::SUCCESS),
        Some(_) => Err(no_hold_ended(&format!("lock {name} is not held by this owner"))),
        None => break_current_holders(&locks, name).await,
    }
}

/// Ends the holds of the current holders, and not those of later ones.
async fn break_current_holders(locks: &Locker, name: &LockName) -> Result<Exit, Failure> {
    let seen = locks.inspect(name).await?.holders;
    if seen.is_empty() {
        return Err(no_hold_ended(&format!("lock {name} is free")));
    }
    let mut ended = Vec::new();
    for holder in &seen {
        let owner = holder.owner.ok_or_else(|| no_owner_id(name))?;
        if locks.break_lock(name, &owner).await? {
            ended.push(holder);
        }
    }
    if ended.is_empty() {
        return Err(no_hold_ended(&format!("lock {name} was released meanwhile")));
    }
    print(&ended.into_iter().map(|holder| line(name, holder)).collect::<String>())?;
    Ok(Exit::SUCCESS)
}

fn line(name: &LockName, holder: &Holder) -> String {
    format!("lock {name} was broken; it was held by {}\n", describe(holder, false))
}

fn no_hold_ended(why: &str) -> Failure {
    Failure::new(Exit::NOTHING, format!("{why}; no hold was ended"))
}

fn no_owner_id(name: &LockName) -> Failure {
    Failure::usage(format!(
        "lock {name} is held by a client without an owner id to compare; end its hold with that \
         client's own tools"
    ))
}
