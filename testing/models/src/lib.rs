//! Models of the algorithms. Each test program explores the states that its model can reach, within
//! bounds. It runs no code of a backend.

/// Returns true if `MODEL_DEPTH=deep` asks for larger bounds, which take minutes.
#[must_use]
pub fn deep() -> bool {
    std::env::var("MODEL_DEPTH").is_ok_and(|depth| depth == "deep")
}
