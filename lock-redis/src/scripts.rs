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
    ACQUIRE: "quick_acquire.lua" "numbers.lua" "line.lua" "acquire.lua";
    RENEW: "numbers.lua" "line.lua" "renew.lua";
    RELEASE: "quick_release.lua" "numbers.lua" "line.lua" "release.lua";
    BREAK: "numbers.lua" "line.lua" "break.lua";
    INSPECT: "inspect.lua";
    RIGHTS: "rights.lua";
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_scripts_have_our_numbers() {
        let idle = format!("local IDLE = {} ", crate::backend::IDLE.as_millis());
        assert!(include_str!("scripts/numbers.lua").contains(&idle));
    }
}
