//! What people use instead: locks of other projects, measured when they are asked for, as far as they are there.

use std::process::{Command, Stdio};

use super::peer::Lib;

/// A library of another project.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Other {
    /// A worker of this program has it, by that name.
    Compiled(&'static str),
    /// A script in `peers/` has it. Told nothing, the script says which version there is.
    Script { name: &'static str, packages: &'static str, command: &'static [&'static str] },
}

pub(crate) const KAZOO: Other = Other::Script {
    name: "kazoo",
    packages: "python3-kazoo",
    // Debian's own: another one in the PATH does not find Debian's packages.
    command: &["/usr/bin/python3", concat!(env!("CARGO_MANIFEST_DIR"), "/peers/kazoo_worker.py")],
};

pub(crate) const CURATOR: Other = Other::Script {
    name: "curator",
    packages: "default-jre-headless libbsh-java libcurator-recipes-java",
    command: &[
        "java",
        "-XX:+UseSerialGC",
        "-cp",
        concat!(
            "/usr/share/java/bsh.jar:/usr/share/java/zookeeper.jar:",
            "/usr/share/java/curator-recipes.jar:/usr/share/java/curator-framework.jar:",
            "/usr/share/java/curator-client.jar:/usr/share/java/guava.jar:",
            "/usr/share/java/slf4j-nop.jar"
        ),
        "bsh.Interpreter",
        concat!(env!("CARGO_MANIFEST_DIR"), "/peers/Curator.bsh"),
    ],
};

/// What was looked for: its name, and which version there is, or what is missing.
pub(crate) type Found = (&'static str, Result<String, String>);

impl Other {
    /// How it is run, if it is there.
    pub(crate) fn find(self, threads: usize) -> (Option<Lib>, Found) {
        match self {
            Self::Compiled(name) => {
                (Some(Lib::own(name, threads)), (name, Ok("as compiled in".into())))
            }
            Self::Script { name, packages, command } => match version(command) {
                Some(version) => (Some(Lib::script(name, command)), (name, Ok(version))),
                None => {
                    let missing =
                        format!("not installed, so not measured: apt-get install {packages}");
                    (None, (name, Err(missing)))
                }
            },
        }
    }
}

fn version(command: &[&str]) -> Option<String> {
    let (program, arguments) = command.split_first()?;
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !version.is_empty()).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_left_out_and_said_so() {
        let other = |command| Other::Script { name: "x", packages: "python3-x", command };
        let fails: &[&str] = &["false"];
        let silent: &[&str] = &["true"];
        let nowhere: &[&str] = &["/nowhere/at/all", "worker"];
        for command in [nowhere, fails, silent] {
            let (lib, (name, version)) = other(command).find(0);
            assert!(lib.is_none() && name == "x", "{command:?}");
            let missing = version.unwrap_err();
            assert!(missing.contains("apt-get install python3-x"), "{missing}");
        }
        let (lib, (_, version)) = other(&["echo", "1.2"]).find(0);
        assert!(lib.is_some_and(|lib| lib.name == "x"));
        assert_eq!(version.as_deref(), Ok("1.2"));
    }
}
