//! The certificates and keys of encrypted connections.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lock_core::{Error, ErrorKind};
use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use zookeeper_client::TlsOptions;

/// The largest file that is read. The bundle of a whole system has about 200 KiB.
const MAX_FILE: u64 = 1 << 20;

/// The trusted authorities, and the client's certificate.
#[derive(Clone, Debug)]
pub(crate) struct Certificates {
    authorities: File,
    /// The client's certificate with its chain, and its key.
    identity: Option<(File, File)>,
}

/// A file in PEM, and the URL option that names it.
#[derive(Clone)]
struct File {
    option: &'static str,
    path: PathBuf,
}

impl Certificates {
    pub(crate) fn new(ca: &str, identity: Option<(&str, &str)>) -> Self {
        let identity = identity.map(|(cert, key)| (File::new("cert", cert), File::new("key", key)));
        Self { authorities: File::new("ca", ca), identity }
    }

    /// Reads the files and checks them.
    pub(crate) async fn read(&self) -> Result<TlsOptions, Error> {
        let these = self.clone();
        let reading = tokio::task::spawn_blocking(move || these.read_blocking());
        reading.await.unwrap_or_else(|_| Err(invalid("reading the certificates was cancelled")))
    }

    fn read_blocking(&self) -> Result<TlsOptions, Error> {
        let provider = provider();
        let refused = |error| invalid(format!("the certificates cannot be used: {error}"));
        let authorities = self.authorities.read()?;
        self.authorities.check_authorities(&authorities)?;
        let options = TlsOptions::new().with_pem_ca(&authorities).map_err(refused)?;
        let Some((cert, key)) = &self.identity else {
            return Ok(options);
        };
        let (chain, secret) = (cert.read()?, key.read()?);
        check_identity((cert, &chain), (key, &secret), &provider)?;
        // The error is not repeated, because it may contain the key.
        let unusable = |_| key.invalid("holds a private key that cannot be used");
        options.with_pem_identity(&chain, &secret).map_err(unusable)
    }
}

/// Returns the cryptography provider. Without a default the library panics, and with two compiled
/// in there is no default. A provider that the program has installed has precedence.
fn provider() -> Arc<CryptoProvider> {
    if CryptoProvider::get_default().is_none() {
        // Another thread may have installed one first.
        let _ = aws_lc_rs::default_provider().install_default();
    }
    let installed = CryptoProvider::get_default().cloned();
    installed.unwrap_or_else(|| Arc::new(aws_lc_rs::default_provider()))
}

/// Checks that the key belongs to the certificate.
fn check_identity(
    (cert, chain): (&File, &str),
    (key, secret): (&File, &str),
    provider: &CryptoProvider,
) -> Result<(), Error> {
    let certificates = cert.certificates(chain)?;
    // The parser's errors repeat lines, and a key that has lost its line breaks is one line.
    let private = PrivateKeyDer::from_pem_slice(secret.as_bytes()).map_err(|_| {
        key.invalid(match secret.contains("ENCRYPTED") {
            true => {
                "holds a private key that is encrypted; decrypt it, for example with openssl pkey"
            }
            false => "holds no private key in PEM",
        })
    })?;
    match CertifiedKey::from_der(certificates, private, provider) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => {
            let why = format!("does not hold the key of the first certificate in {cert}");
            Err(key.invalid(&why))
        }
        Err(rustls::Error::InvalidCertificate(error)) => {
            Err(cert.invalid(&format!("holds an invalid certificate: {error}")))
        }
        Err(_) => Err(key.invalid("holds a private key of an unknown kind")),
    }
}

impl File {
    fn new(option: &'static str, path: impl AsRef<Path>) -> Self {
        Self { option, path: path.as_ref().to_owned() }
    }

    fn check_authorities(&self, text: &str) -> Result<(), Error> {
        let mut trusted = RootCertStore::empty();
        for certificate in self.certificates(text)? {
            trusted
                .add(certificate)
                .map_err(|error| self.invalid(&format!("holds an invalid certificate: {error}")))?;
        }
        Ok(())
    }

    fn certificates(&self, text: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        match found {
            Ok(found) if !found.is_empty() => Ok(found),
            Ok(_) => Err(self.invalid("holds no certificate in PEM")),
            Err(_) => Err(self.invalid("is not valid PEM")),
        }
    }

    fn read(&self) -> Result<String, Error> {
        let unreadable = |error| self.invalid(&format!("cannot be read: {error}"));
        // Other files may never end, or block when they are opened.
        if !std::fs::metadata(&self.path).map_err(unreadable)?.is_file() {
            return Err(self.invalid("is no regular file"));
        }
        let mut text = Vec::new();
        let file = std::fs::File::open(&self.path).map_err(unreadable)?;
        file.take(MAX_FILE + 1).read_to_end(&mut text).map_err(unreadable)?;
        if text.len() as u64 > MAX_FILE {
            return Err(self.invalid("is too large for certificates: more than 1 MiB"));
        }
        String::from_utf8(text).map_err(|_| self.invalid("is not valid PEM"))
    }

    fn invalid(&self, why: &str) -> Error {
        invalid(format!("{self} {why}"))
    }
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the file {:?} of the URL option {}", self.path, self.option)
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({self})")
    }
}

fn invalid(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, why)
}
