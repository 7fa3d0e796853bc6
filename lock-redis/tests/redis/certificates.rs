//! Certificates of our own, and servers that use them.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;
use test_servers::{RedisOptions, TlsFiles};

use crate::support::Server;

const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
pub(crate) const OF_THIS_HOST: &str = "subjectAltName=IP:127.0.0.1";
pub(crate) const AUTHORITY: &str = "basicConstraints=critical,CA:TRUE";
pub(crate) const NO_AUTHORITY: &str = "basicConstraints=CA:FALSE";

/// Authorities and the certificates that they signed. This host is named by its address: a bare
/// system has no names.
pub(crate) struct Certificates(TempDir);

impl Certificates {
    /// Creates an authority, and certificates of a server and a client.
    pub(crate) fn new() -> Self {
        let these = Self(tempfile::tempdir().unwrap());
        these.self_signed("ca", &[AUTHORITY]);
        these.issue("good", "ca", OF_THIS_HOST, 30);
        these.issue("client", "ca", NO_AUTHORITY, 30);
        these
    }

    /// Adds a client of another authority.
    pub(crate) fn with_stranger(self) -> Self {
        self.self_signed("other", &[AUTHORITY]);
        self.issue("stranger", "other", NO_AUTHORITY, 30);
        self
    }

    /// Adds a client of an intermediate authority, in `chain.pem` together with that authority.
    pub(crate) fn with_employee(self) -> Self {
        self.issue("department", "ca", AUTHORITY, 30);
        self.issue("employee", "department", NO_AUTHORITY, 30);
        self.join(&["employee.pem", "department.pem"], "chain.pem");
        self
    }

    pub(crate) fn self_signed(&self, name: &str, extensions: &[&str]) {
        let files = format!("-keyout {name}.key -out {name}.pem");
        let added: String = extensions.iter().map(|text| format!(" -addext {text}")).collect();
        self.openssl(&format!("req -x509 {NEW_KEY} {files} -days 30 -subj /CN={name}{added}"));
    }

    pub(crate) fn issue(&self, name: &str, authority: &str, extension: &str, days: i32) {
        std::fs::write(self.path("extension"), extension).unwrap();
        self.openssl(&format!("req -new {NEW_KEY} -keyout {name}.key -out r.csr -subj /CN={name}"));
        let by = format!("-CA {authority}.pem -CAkey {authority}.key -CAcreateserial");
        self.openssl(&format!(
            "x509 -req -in r.csr {by} -extfile extension -out {name}.pem -days {days}"
        ));
    }

    pub(crate) fn openssl(&self, arguments: &str) {
        let output = Command::new("openssl")
            .args(arguments.split(' '))
            .current_dir(&self.0)
            .output()
            .expect("openssl is needed: sudo apt-get install openssl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub(crate) fn join(&self, parts: &[&str], whole: &str) {
        self.write(whole, parts.iter().flat_map(|part| self.read(part)).collect::<Vec<_>>());
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    pub(crate) fn read(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.path(file)).unwrap()
    }

    pub(crate) fn write(&self, file: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(file), content).unwrap();
    }

    /// Returns the files of a server with the certificate of that name.
    pub(crate) fn files(&self, name: &str) -> TlsFiles {
        let file = |end: &str| self.path(&format!("{name}.{end}"));
        TlsFiles { certificate: file("pem"), key: file("key"), authority: self.path("ca.pem") }
    }

    /// Starts a server with the certificate of that name, and returns its encrypted port.
    pub(crate) fn server(&self, name: &str, settings: &[(&str, &str)]) -> (Server, u16) {
        let options = RedisOptions::new().encrypted(self.files(name));
        let set =
            |options: RedisOptions, (name, value): &(&str, &str)| options.setting(name, value);
        let server = Server::with_options(settings.iter().fold(options, set));
        let port = server.tls_addr().port();
        (server, port)
    }

    /// Returns the URL with these `options`, in which `@` stands for the directory.
    pub(crate) fn url(&self, port: u16, options: &str) -> String {
        let options = options.replace('@', self.0.path().to_str().unwrap());
        format!("rediss://127.0.0.1:{port}?{options}")
    }
}
