//! A stand-in for a Redis server: our scripts run in it as they are, in the Lua that Redis has. It
//! is itself compared with a Redis server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlua::{Function, Lua, MultiValue, Table, Value};

use super::audit::{Asked, Audit, next_in_line};
use super::keyspace::{Keyspace, Peer, name_of, nature};
use super::order::shown;
use super::wire::{Reply, Request};

/// The environment of scripts in Redis: errors of commands are tables, and globals are out of
/// reach.
const PRELUDE: &str = r#"
local command, raise = ...
redis = {
    call = function(...)
        local answer = command(...)
        if type(answer) == 'table' and answer.err then
            error(answer, 0)
        end
        return answer
    end,
    pcall = function(...) return command(...) end,
    error_reply = function(text) return {err = text} end,
    status_reply = function(text) return {ok = text} end,
}
KEYS, ARGV = {}, {}
local function refuse(_, name)
    error('Script attempted to access nonexistent global variable ' .. tostring(name), 2)
end
setmetatable(_G, {__index = refuse, __newindex = refuse})
return function(script, keys, args)
    rawset(_G, 'KEYS', keys)
    rawset(_G, 'ARGV', args)
    local done, answer = pcall(script)
    if not done and type(answer) ~= 'table' then
        return {err = 'ERR ' .. tostring(answer)}
    end
    return answer
end
"#;

pub(crate) struct Server {
    lua: Lua,
    run: Function,
    /// By their digests: those that it was told of at some time. To compile them takes longer than
    /// to run them.
    scripts: BTreeMap<String, Function>,
    /// Those that it knows.
    loaded: BTreeSet<String>,
    inner: Arc<Mutex<Inner>>,
    audit: Audit,
}

/// The data for the commands of a script.
struct Inner {
    keys: Keyspace,
    /// The script that runs has written.
    has_written: bool,
    /// The memory limit was reached when it began.
    was_full: bool,
}

impl Server {
    pub(crate) fn new() -> Self {
        let lua = Lua::new();
        // A run leaves little garbage.
        lua.gc_stop();
        let keys = Keyspace::default();
        let inner = Inner { keys, has_written: false, was_full: false };
        let inner = Arc::new(Mutex::new(inner));
        let of_scripts = Arc::clone(&inner);
        let command = lua
            .create_function(move |lua, words: MultiValue| {
                let words = words.iter().map(word).collect::<Request>();
                to_lua(lua, &lock(&of_scripts).command(&words))
            })
            .expect("a function");
        let run = lua.load(PRELUDE).call(command).expect("the prelude is right");
        let (scripts, loaded, audit) = Default::default();
        Self { lua, run, scripts, loaded, inner, audit }
    }

    pub(crate) fn keys(&self) -> KeyspaceGuard<'_> {
        KeyspaceGuard(lock(&self.inner))
    }

    /// Runs the request of a client, and answers it.
    pub(crate) fn serve(&mut self, request: &Request, by: Peer) -> Reply {
        let of_connection = self.keys().run_of_connection(request, by);
        let reply = match of_connection {
            Some(reply) => reply,
            None => match &*name_of(request) {
                "EVALSHA" => self.evaluate(request),
                "SCRIPT" => self.script(request),
                "DELIFEQ" => self.delete(request, by),
                "INFO" => Reply::bulk("redis_mode:standalone\r\nmaxmemory_policy:noeviction\r\n"),
                _ => self.keys().run(request, Some(by), true).unwrap_or_else(Reply::Error),
            },
        };
        self.keys().has_run(request, by);
        reply
    }

    /// Starts a new process: it knows no scripts, and may have other data.
    pub(crate) fn begin_anew(&mut self) {
        self.loaded.clear();
        self.audit = Audit::default();
    }

    /// Deletes a lock as a release without a script does.
    fn delete(&mut self, request: &Request, by: Peer) -> Reply {
        let mut keys = self.keys();
        let next = request.get(1).and_then(|lock| next_in_line(&keys, lock));
        let reply = keys.run(request, Some(by), true).unwrap_or_else(Reply::Error);
        if let (Reply::Integer(1), Some(member)) = (&reply, next) {
            let wrong = format!("the lock was deleted, and {} not served", shown(&member));
            keys.failures.push(wrong);
        }
        reply
    }

    fn script(&mut self, request: &Request) -> Reply {
        match &request[1..] {
            [load, text] if load == b"LOAD" => {
                let sha = sha1_smol::Sha1::from(text).digest().to_string();
                if !self.scripts.contains_key(&sha) {
                    let script = self.compile(text);
                    self.scripts.insert(sha.clone(), script);
                }
                self.loaded.insert(sha.clone());
                Reply::bulk(sha)
            }
            [flush] if flush == b"FLUSH" => {
                self.loaded.clear();
                Reply::Simple("OK")
            }
            _ => Reply::Error("ERR unknown subcommand".to_owned()),
        }
    }

    fn compile(&self, text: &[u8]) -> Function {
        let text = std::str::from_utf8(text).expect("scripts are text");
        self.lua.load(text).into_function().expect("scripts are right")
    }

    fn evaluate(&mut self, request: &Request) -> Reply {
        let sha = String::from_utf8_lossy(&request[1]).into_owned();
        let Some(script) = self.scripts.get(&sha).filter(|_| self.loaded.contains(&sha)) else {
            return Reply::Error("NOSCRIPT No matching script. Please use EVAL.".to_owned());
        };
        let keys: usize = String::from_utf8_lossy(&request[2]).parse().expect("a number of keys");
        let (keys, args) = request[3..].split_at(keys);
        lock(&self.inner).begins_script();
        let asked = Asked::before(&self.keys(), keys, args);
        let table = |words: &[Vec<u8>]| {
            let words = words.iter().map(|word| self.lua.create_string(word).expect("a string"));
            self.lua.create_sequence_from(words).expect("a table")
        };
        let answer = self.run.call::<Value>((script, table(keys), table(args)));
        let reply = match answer {
            Ok(answer) => from_lua(&answer),
            Err(error) => Reply::Error(format!("ERR {error}")),
        };
        if let Reply::Error(error) = &reply
            && !error.starts_with("OOM")
        {
            self.keys().failures.push(error.clone());
        }
        let mut data = KeyspaceGuard(lock(&self.inner));
        let sent = std::mem::take(&mut data.messages);
        let wrong = self.audit.after(&data, &asked, &reply, &sent);
        data.failures.extend(wrong);
        drop(data);
        reply
    }
}

impl Inner {
    fn begins_script(&mut self) {
        (self.has_written, self.was_full) = (false, self.keys.is_full);
    }

    fn command(&mut self, words: &Request) -> Reply {
        let may_refuse = self.was_full && !self.has_written;
        let answer = self.keys.run(words, None, may_refuse);
        let is_refused = matches!(&answer, Err(error) if error.starts_with("OOM"));
        self.has_written |= nature(&name_of(words)).writes && !is_refused;
        answer.unwrap_or_else(Reply::Error)
    }
}

/// The data, locked against other users.
pub(crate) struct KeyspaceGuard<'a>(MutexGuard<'a, Inner>);

impl std::ops::Deref for KeyspaceGuard<'_> {
    type Target = Keyspace;

    fn deref(&self) -> &Keyspace {
        &self.0.keys
    }
}

impl std::ops::DerefMut for KeyspaceGuard<'_> {
    fn deref_mut(&mut self) -> &mut Keyspace {
        &mut self.0.keys
    }
}

fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A word of a command, as Redis makes it of a Lua value.
fn word(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Number(number) => number.to_string().into_bytes(),
        other => panic!("a command of a script has {other:?} in it"),
    }
}

fn to_lua(lua: &Lua, reply: &Reply) -> mlua::Result<Value> {
    let table = |name, text: &str| -> mlua::Result<Value> {
        let table = lua.create_table()?;
        table.raw_set(name, text)?;
        Ok(Value::Table(table))
    };
    Ok(match reply {
        Reply::Simple(text) => table("ok", text)?,
        Reply::Error(text) => table("err", text)?,
        Reply::Integer(number) => Value::Number(*number as f64),
        Reply::Bulk(bytes) => Value::String(lua.create_string(bytes)?),
        Reply::Null => Value::Boolean(false),
        Reply::Array(items) => {
            let items = items.iter().map(|item| to_lua(lua, item));
            Value::Table(lua.create_sequence_from(items.collect::<mlua::Result<Vec<_>>>()?)?)
        }
        Reply::Map(_) | Reply::Push(_) => unreachable!("scripts have no connection"),
    })
}

fn from_lua(value: &Value) -> Reply {
    match value {
        Value::Integer(number) => Reply::Integer(*number),
        Value::Number(number) => Reply::Integer(*number as i64),
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        Value::Boolean(true) => Reply::Integer(1),
        Value::Table(table) => from_table(table),
        _ => Reply::Null,
    }
}

fn from_table(table: &Table) -> Reply {
    if let Ok(text) = table.raw_get::<String>("err") {
        return Reply::Error(text);
    }
    let items = table.sequence_values::<Value>().map_while(Result::ok);
    Reply::Array(items.map(|item| from_lua(&item)).collect())
}
