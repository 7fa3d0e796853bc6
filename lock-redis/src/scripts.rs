//! The scripts that run on the server. What each one promises stands in its file.

use std::sync::LazyLock;

use redis::Script;

macro_rules! scripts {
    ($($name:ident: $($file:literal)+;)*) => {
        $(pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(concat!($(include_str!(concat!("scripts/", $file))),+))
        });)*
    };
}

scripts! {
    ACQUIRE: "serve.lua" "acquire.lua";
    RENEW: "serve.lua" "renew.lua";
    RELEASE: "serve.lua" "release.lua";
    BREAK: "serve.lua" "break.lua";
    INSPECT: "inspect.lua";
    RIGHTS: "rights.lua";
}
