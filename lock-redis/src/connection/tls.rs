//! Certificates and keys: the trusted authorities, and the client's identity.

use std::error::Error as StdError;
use std::fmt;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

use lock_core::{Error, ErrorKind};
use redis::{ClientTlsConfig, TlsCertificates};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::connector::BoxedStream;

/// Above the bundle of a whole system, which has about 200 KiB.
const MAX_FILE: u64 = 1 << 20;

/// The authorities for servers, and the client's own certificate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Certificates {
    /// `None` for those that the system trusts.
    pub(crate) authorities: Option<Pem>,
    /// A certificate with those that vouch for it, and its key.
    pub(crate) identity: Option<(Pem, Pem)>,
}

/// A text in PEM, or the file that holds it. Errors call it by its name.
#[derive(Clone)]
pub(crate) enum Pem {
    Given { name: &'static str, text: Arc<[u8]> },
    File { option: &'static str, path: PathBuf },
}

impl Certificates {
    /// Reads the files and checks all certificates that `encrypted` connections need. Returns
    /// `None` for connections that are not encrypted.
    pub(crate) async fn read_for(&self, encrypted: bool) -> Result<Option<TlsCertificates>, Error> {
        if !encrypted {
            return match (&self.authorities, &self.identity) {
                (None, None) => Ok(None),
                _ => Err(invalid("certificates need an encrypted connection: use rediss://")),
            };
        }
        provider();
        let these = self.clone();
        let reading = tokio::task::spawn_blocking(move || these.read_blocking());
        let read = reading.await.unwrap_or_else(|_| Err(invalid("nobody read the certificates")));
        read.map(Some)
    }

    fn read_blocking(&self) -> Result<TlsCertificates, Error> {
        let root_cert = self.authorities.as_ref().map(read_authorities).transpose()?;
        let client_tls =
            self.identity.as_ref().map(|(chain, key)| read_identity(chain, key)).transpose()?;
        Ok(TlsCertificates { client_tls, root_cert })
    }
}

/// Encrypts the stream of a connector, and checks the certificate of the server against `host`, as
/// the Redis library does for streams that it opens.
pub(crate) async fn encrypt(
    stream: BoxedStream,
    host: &str,
    certificates: &TlsCertificates,
) -> io::Result<BoxedStream> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let config = client_config(certificates).map_err(io::Error::other)?;
    Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await?))
}

fn client_config(read: &TlsCertificates) -> Result<ClientConfig, Box<dyn StdError + Send + Sync>> {
    let mut trusted = RootCertStore::empty();
    if let Some(text) = &read.root_cert {
        for certificate in CertificateDer::pem_slice_iter(text) {
            trusted.add(certificate?)?;
        }
    } else {
        let mut found = rustls_native_certs::load_native_certs();
        if let Some(error) = found.errors.pop() {
            return Err(error.into());
        }
        for certificate in found.certs {
            trusted.add(certificate)?;
        }
    }
    let config = ClientConfig::builder().with_root_certificates(trusted);
    let Some(ClientTlsConfig { client_cert, client_key }) = &read.client_tls else {
        return Ok(config.with_no_client_auth());
    };
    let chain = CertificateDer::pem_slice_iter(client_cert).collect::<Result<_, _>>()?;
    Ok(config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(client_key)?)?)
}

/// Returns the provider of the cryptography. Without a default the library panics, and with two
/// compiled in there is no default. A provider that the program has installed is used.
fn provider() -> Arc<CryptoProvider> {
    if CryptoProvider::get_default().is_none() {
        // Another thread may have been faster.
        let _ = aws_lc_rs::default_provider().install_default();
    }
    let installed = CryptoProvider::get_default().cloned();
    installed.unwrap_or_else(|| Arc::new(aws_lc_rs::default_provider()))
}

fn read_authorities(pem: &Pem) -> Result<Vec<u8>, Error> {
    let text = pem.read()?;
    let mut trusted = RootCertStore::empty();
    for certificate in certificates(pem, &text)? {
        trusted
            .add(certificate)
            .map_err(|error| pem.invalid(&format!("holds what is no certificate: {error}")))?;
    }
    Ok(text)
}

fn read_identity(chain: &Pem, key: &Pem) -> Result<ClientTlsConfig, Error> {
    let (client_cert, client_key) = (chain.read()?, key.read()?);
    let certificates = certificates(chain, &client_cert)?;
    // The parser's errors repeat lines, and a key that has lost its line breaks is one line.
    let private = PrivateKeyDer::from_pem_slice(&client_key).map_err(|_| {
        let encrypted = client_key.windows(9).any(|part| part == b"ENCRYPTED");
        key.invalid(if encrypted {
            "holds a private key that is encrypted; decrypt it, for example with openssl pkey"
        } else {
            "holds no private key in PEM"
        })
    })?;
    match CertifiedKey::from_der(certificates, private, &provider()) {
        Ok(_) => Ok(ClientTlsConfig { client_cert, client_key }),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(key.invalid(&format!("does not hold the key of the first certificate in {chain}")))
        }
        Err(rustls::Error::InvalidCertificate(error)) => {
            Err(chain.invalid(&format!("holds what is no certificate: {error}")))
        }
        Err(_) => Err(key.invalid("holds a private key of an unknown kind")),
    }
}

fn certificates(pem: &Pem, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(pem.invalid("holds no certificate in PEM")),
        Err(_) => Err(pem.invalid("is no proper PEM")),
    }
}

impl Pem {
    pub(crate) fn given(name: &'static str, text: impl Into<Vec<u8>>) -> Self {
        Self::Given { name, text: text.into().into() }
    }

    pub(crate) fn file(option: &'static str, path: impl Into<PathBuf>) -> Self {
        Self::File { option, path: path.into() }
    }

    fn read(&self) -> Result<Vec<u8>, Error> {
        let path = match self {
            Self::Given { text, .. } => return Ok(text.to_vec()),
            Self::File { path, .. } => path,
        };
        let unreadable = |error| self.invalid(&format!("cannot be read: {error}"));
        // Others may never end, or not even begin.
        if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(self.invalid("is no regular file"));
        }
        let mut text = Vec::new();
        let file = std::fs::File::open(path).map_err(unreadable)?;
        file.take(MAX_FILE + 1).read_to_end(&mut text).map_err(unreadable)?;
        if text.len() as u64 > MAX_FILE {
            return Err(self.invalid("is too large for certificates: more than 1 MiB"));
        }
        Ok(text)
    }

    fn invalid(&self, why: &str) -> Error {
        invalid(format!("{self} {why}"))
    }
}

impl fmt::Display for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given { name, .. } => write!(f, "what was given to {name}"),
            Self::File { option, path } => {
                write!(f, "the file {path:?} of the URL option {option}")
            }
        }
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({self})")
    }
}

fn invalid(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, why)
}
