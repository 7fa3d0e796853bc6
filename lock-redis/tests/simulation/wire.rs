//! Redis' protocol, version 3, as far as our clients and the stand-in speak it.

/// An answer of a server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Simple(&'static str),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<Reply>),
    Map(Vec<(&'static str, Reply)>),
    Push(Vec<Reply>),
}

impl Reply {
    pub(crate) fn bulk(bytes: impl AsRef<[u8]>) -> Self {
        Self::Bulk(bytes.as_ref().to_vec())
    }

    /// Converts to bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_to(&mut out);
        out
    }

    /// Appends it as bytes.
    pub(crate) fn write_to(&self, out: &mut Vec<u8>) {
        let mut line = |text: String| {
            out.extend_from_slice(text.as_bytes());
            out.extend_from_slice(b"\r\n");
        };
        match self {
            Self::Simple(text) => line(format!("+{text}")),
            Self::Error(text) => line(format!("-{text}")),
            Self::Integer(number) => line(format!(":{number}")),
            Self::Null => line("_".to_owned()),
            Self::Bulk(bytes) => {
                line(format!("${}", bytes.len()));
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Self::Array(items) => {
                line(format!("*{}", items.len()));
                items.iter().for_each(|item| item.write_to(out));
            }
            Self::Push(items) => {
                line(format!(">{}", items.len()));
                items.iter().for_each(|item| item.write_to(out));
            }
            Self::Map(pairs) => {
                line(format!("%{}", pairs.len()));
                for (name, value) in pairs {
                    Self::bulk(name).write_to(out);
                    value.write_to(out);
                }
            }
        }
    }
}

/// A request: its words.
pub(crate) type Request = Vec<Vec<u8>>;

/// Takes the first request off `bytes`, if all of it is there.
pub(crate) fn take_request(bytes: &mut Vec<u8>) -> Option<Request> {
    let mut rest = &bytes[..];
    let words = number(&mut rest, b'*')?;
    let mut request = Vec::with_capacity(words);
    for _ in 0..words {
        let length = number(&mut rest, b'$')?;
        let word = rest.get(..length)?.to_vec();
        rest = rest.get(length + 2..)?;
        request.push(word);
    }
    let taken = bytes.len() - rest.len();
    bytes.drain(..taken);
    Some(request)
}

fn number(rest: &mut &[u8], kind: u8) -> Option<usize> {
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let (line, after) = (&rest[..end], &rest[end + 2..]);
    assert_eq!(line.first(), Some(&kind), "clients of ours send arrays of strings");
    *rest = after;
    Some(std::str::from_utf8(&line[1..]).ok()?.parse().expect("a length"))
}

/// Takes the first reply off `bytes`, if all of it is there. A word comes as a string.
pub(crate) fn take_reply(bytes: &mut &[u8]) -> Option<Reply> {
    let mut rest = *bytes;
    let kind = *rest.first()?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let line = String::from_utf8_lossy(&rest[1..end]).into_owned();
    rest = &rest[end + 2..];
    let count = || line.parse::<usize>().expect("a count");
    let mut items = |count: usize| -> Option<Vec<Reply>> {
        (0..count).map(|_| take_reply(&mut rest)).collect()
    };
    let reply = match kind {
        b'+' => Reply::bulk(line),
        b'-' => Reply::Error(line),
        b':' => Reply::Integer(line.parse().expect("a number")),
        b'_' => Reply::Null,
        b'*' => Reply::Array(items(count())?),
        b'>' => Reply::Push(items(count())?),
        b'%' => Reply::Array(items(2 * count())?),
        b'$' | b'=' => {
            let text = rest.get(..count())?.to_vec();
            rest = rest.get(count() + 2..)?;
            Reply::Bulk(text)
        }
        other => panic!("a reply of the kind {:?}", char::from(other)),
    };
    *bytes = rest;
    Some(reply)
}

/// Encodes a request as bytes.
pub(crate) fn request(words: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    words.iter().for_each(|word| Reply::bulk(word).write_to(&mut out));
    out
}
