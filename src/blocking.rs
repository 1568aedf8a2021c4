//! Work that blocks, off the runtime's own threads.

use tokio::task::JoinHandle;

/// Does it, and waits for it. Its panic is ours. When the runtime ends first, nobody is left to wait.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    done(tokio::task::spawn_blocking(work)).await
}

/// Waits for what was begun before, in the same way.
pub(crate) async fn done<T>(work: JoinHandle<T>) -> T {
    match work.await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_cancelled) => std::future::pending().await,
        },
    }
}
