use std::path::Path;
use std::process::Output;

use sqlx::{Connection, SqliteConnection, query, query_as};

use crate::{Process, locks_in, program, until_held};

const BATCH: &str = env!("CARGO_BIN_EXE_batch");

/// Creates a database with one unpaid order whose row has seen `fence`.
async fn database(directory: &Path, fence: i64) -> (String, SqliteConnection) {
    let url = format!("sqlite:{}/orders.db", directory.display());
    let mut database = SqliteConnection::connect(&format!("{url}?mode=rwc")).await.unwrap();
    let table = "CREATE TABLE orders (id INTEGER PRIMARY KEY, paid BOOLEAN, fence INTEGER)";
    query(table).execute(&mut database).await.unwrap();
    let row = "INSERT INTO orders VALUES (42, false, $1)";
    query(row).bind(fence).execute(&mut database).await.unwrap();
    (url, database)
}

async fn row(database: &mut SqliteConnection) -> (bool, i64) {
    let row = query_as("SELECT paid, fence FROM orders WHERE id = 42");
    row.fetch_one(database).await.unwrap()
}

fn run(directory: &Path, url: &str) -> (Output, String) {
    let output = program(BATCH, &locks_in(directory)).args(["--database", url]).output().unwrap();
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output, String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn a_free_order_is_paid_and_a_held_one_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let (url, mut database) = database(directory.path(), 0).await;
    let locks = lock_any::connect(&locks_in(directory.path())).await.unwrap();
    let guard = locks.lock("orders/42").unwrap().acquire().await.unwrap();
    let (output, text) = run(directory.path(), &url);
    assert!(output.status.success() && text.contains("left to another process"), "{text}");
    assert_eq!(row(&mut database).await, (false, 0));

    let token = guard.fencing_token().unwrap().as_i64();
    guard.release().await.unwrap();
    let (output, text) = run(directory.path(), &url);
    assert!(output.status.success() && text.contains("order 42 is paid"), "{text}");
    let (paid, fence) = row(&mut database).await;
    assert!(paid && fence > token, "{fence} {token}");
}

#[tokio::test]
async fn the_row_refuses_a_stale_token() {
    let directory = tempfile::tempdir().unwrap();
    let (url, mut database) = database(directory.path(), i64::MAX).await;
    let (output, text) = run(directory.path(), &url);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("has seen a token newer than"), "{text}");
    assert_eq!(row(&mut database).await, (false, i64::MAX));
}

/// The write of a holder that lost its lock waits in the database, and comes behind the next one's.
#[tokio::test]
async fn a_late_write_does_not_undo_the_write_of_the_next_holder() {
    let directory = tempfile::tempdir().unwrap();
    let (url, mut database) = database(directory.path(), 0).await;
    let locks = lock_any::connect(&locks_in(directory.path())).await.unwrap();
    let mut transaction = database.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let batch =
        Process::start(program(BATCH, &locks_in(directory.path())).args(["--database", &url]));
    let owner = until_held(&locks, "orders/42").await;
    assert!(locks.break_lock("orders/42", &owner).await.unwrap());

    let guard = locks.lock("orders/42").unwrap().acquire().await.unwrap();
    let token = guard.fencing_token().unwrap().as_i64();
    let next = query("UPDATE orders SET paid = false, fence = $1 WHERE id = 42 AND fence <= $1");
    next.bind(token).execute(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(batch.status(), Some(1));
    assert_eq!(row(&mut database).await, (false, token));
    guard.release().await.unwrap();
}
