//! `docs/interop.md`, written from the record.
