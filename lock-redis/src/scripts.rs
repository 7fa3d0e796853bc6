//! The scripts that run on the server. What each one promises stands in its file.

use std::sync::LazyLock;

use redis::Script;

/// For one server.
pub(crate) static PLAIN: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(str::to_owned));

/// For a cluster. There `PUBLISH` reaches every member and counts who hears it on its own alone; what is said to a
/// channel of a slot stays where the slot is.
pub(crate) static SHARDED: LazyLock<Scripts> =
    LazyLock::new(|| Scripts::new(|script| script.replace("'PUBLISH'", "'SPUBLISH'")));

macro_rules! scripts {
    ($($name:ident: $($file:literal)+;)*) => {
        pub(crate) struct Scripts {
            $(pub(crate) $name: Script,)*
        }

        impl Scripts {
            fn new(adapt: impl Fn(&str) -> String) -> Self {
                let script = |source| Script::new(&adapt(source));
                Self { $($name: script(concat!($(include_str!(concat!("scripts/", $file))),+)),)* }
            }
        }
    };
}

scripts! {
    acquire: "quick_acquire.lua" "numbers.lua" "line.lua" "acquire.lua";
    renew: "numbers.lua" "line.lua" "renew.lua";
    release: "quick_release.lua" "numbers.lua" "line.lua" "release.lua";
    break_lock: "numbers.lua" "line.lua" "break.lua";
    inspect: "inspect.lua";
    rights: "rights.lua";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_cluster_everything_is_said_in_its_slot() {
        for (plain, sharded) in
            [(&PLAIN.acquire, &SHARDED.acquire), (&PLAIN.rights, &SHARDED.rights)]
        {
            assert_ne!(plain.get_hash(), sharded.get_hash(), "it says something");
        }
        assert_eq!(PLAIN.inspect.get_hash(), SHARDED.inspect.get_hash());
        for source in [include_str!("scripts/line.lua"), include_str!("scripts/rights.lua")] {
            let said = source.matches("PUBLISH").count();
            assert!(said > 0 && said == source.matches("'PUBLISH'").count(), "written otherwise");
        }
    }

    #[test]
    fn the_scripts_have_our_numbers() {
        let ours =
            [("IDLE", crate::backend::IDLE), ("PLACE_LASTS", lock_core::backend::PLACE_LASTS)];
        for (name, lasts) in ours {
            let line = format!("local {name} = {} ", lasts.as_millis());
            assert!(include_str!("scripts/numbers.lua").contains(&line), "{line}");
        }
    }
}
