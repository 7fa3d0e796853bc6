//! Locks of other libraries under our prefix, which keep them in other types.

use lock_core::diagnosis::Finding;
use redis::{FromRedisValue, RedisError, Value as Answer};

use crate::diagnose::probe::{Probe, Seen, Unseen};
use crate::keys::is_companion;

/// The keys that are looked at: so many for each request, and so many requests.
const KEYS: usize = 100;
const REQUESTS: usize = 10;

/// Looks for keys that may be locks in another layout, in a sample.
pub(crate) async fn check(probe: &Probe) -> Finding {
    sample(probe).await.unwrap_or_else(|unseen| unseen.finding("foreign types"))
}

async fn sample(probe: &Probe) -> Seen<Finding> {
    let pattern = probe.config().keys.pattern("");
    let (mut cursor, mut seen) = (0_u64, 0);
    for _ in 0..REQUESTS {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(KEYS);
        let (next, keys): (u64, Vec<Vec<u8>>) = probe.ask(&scan, "SCAN", "scan").await?;
        seen += keys.len();
        if let Some((key, what)) = first_foreign(probe, &keys).await? {
            let key = String::from_utf8_lossy(key).escape_debug().to_string();
            return Ok(Finding::warning("foreign types", format!("{key} is {what}"))
                .remedy("keep one layout for each name: give ours a prefix of their own"));
        }
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    let extent = if cursor == 0 { "all" } else { "a sample" };
    let text = format!("{seen} keys under the prefix, {extent}, and no lock of another type");
    Ok(Finding::ok("foreign types", text))
}

/// Returns the first key that may be a lock of another library, and says of which.
async fn first_foreign<'k>(
    probe: &Probe,
    keys: &'k [Vec<u8>],
) -> Seen<Option<(&'k [u8], &'static str)>> {
    let types: Vec<String> = ask_each(probe, "TYPE", keys).await?;
    let of_type = |wanted: &str| {
        let pairs = keys.iter().zip(&types).filter(|(_, kind)| *kind == wanted);
        pairs.map(|(key, _)| key.as_slice()).collect::<Vec<_>>()
    };
    let hashes = expiring(probe, of_type("hash")).await?;
    let fields: Vec<(Answer, Vec<Vec<u8>>)> = ask_each(probe, "HSCAN", &hashes).await?;
    let is_lock = |fields: &[Vec<u8>]| fields.iter().step_by(2).any(|field| is_holder(field));
    let lock = hashes.iter().zip(&fields).find(|(_, (_, fields))| is_lock(fields));
    if let Some((key, _)) = lock {
        let what = "a hash that expires, as Redisson keeps locks: a lock of ours of that name \
                    costs its client all its locks";
        return Ok(Some((key, what)));
    }
    let mut sets = of_type("zset");
    sets.retain(|key| !std::str::from_utf8(key).is_ok_and(is_companion));
    let set = expiring(probe, sets).await?.first().copied();
    let what =
        "a sorted set that expires, as Symfony keeps locks: it is waited for, and has no token";
    Ok(set.map(|key| (key, what)))
}

/// Returns those of the keys that expire.
async fn expiring<'k>(probe: &Probe, keys: Vec<&'k [u8]>) -> Seen<Vec<&'k [u8]>> {
    let expire_in: Vec<i64> = ask_each(probe, "PTTL", &keys).await?;
    let expires = |(key, expires_in)| (expires_in >= 0).then_some(key);
    Ok(keys.into_iter().zip(expire_in).filter_map(expires).collect())
}

/// Sends the command for each key, all in one write.
async fn ask_each<T: FromRedisValue>(
    probe: &Probe,
    name: &'static str,
    keys: &[impl AsRef<[u8]>],
) -> Seen<Vec<T>> {
    let command = |key: &dyn AsRef<[u8]>| {
        let mut command = redis::cmd(name);
        command.arg(key.as_ref());
        if name == "HSCAN" {
            command.arg(0).arg("COUNT").arg(1);
        }
        command
    };
    let commands: Vec<_> = keys.iter().map(|key| command(key)).collect();
    let refused = |error| Unseen::refused(name, &name.to_lowercase(), &error);
    let answers = probe.ask_all(&commands).await?.into_iter();
    let parse = |answer: Result<Answer, RedisError>| {
        answer.and_then(|answer| Ok(redis::from_redis_value(answer)?)).map_err(refused)
    };
    answers.map(parse).collect()
}

/// Returns true for a field as Redisson names its holders: `<UUID>:<thread>`.
fn is_holder(field: &[u8]) -> bool {
    const UUID: [usize; 5] = [8, 4, 4, 4, 12];

    let Ok(field) = std::str::from_utf8(field) else { return false };
    let Some((uuid, thread)) = field.split_once(':') else { return false };
    let is_hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    uuid.split('-').map(str::len).eq(UUID)
        && uuid.split('-').all(is_hex)
        && thread.parse::<u64>().is_ok()
}
