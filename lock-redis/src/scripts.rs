//! The scripts that run on the server. What each one promises stands in its file.

use std::sync::LazyLock;

use redis::Script;

macro_rules! scripts {
    ($($name:ident: $file:literal;)*) => {
        $(pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!(concat!("scripts/", $file))));)*
    };
}

scripts! {
    ACQUIRE: "acquire.lua";
    RENEW: "renew.lua";
    RELEASE: "release.lua";
    BREAK: "break.lua";
    INSPECT: "inspect.lua";
    RIGHTS: "rights.lua";
}
