//! Starts child processes (`spawn`), and runs code while no process is being started
//! (`undisturbed`).
//!
//! Between fork and exec a child has copies of this process's sockets, so a closed address stays in
//! use. Code that binds an address again must therefore keep other threads from starting a process.

use std::io;
use std::process::{Child, Command};
use std::sync::{PoisonError, RwLock};

static STARTING: RwLock<()> = RwLock::new(());

/// Several threads may start programs at once.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    let _starting = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    command.spawn()
}

/// Runs `act` while [`spawn`] starts no process.
pub fn undisturbed<T>(act: impl FnOnce() -> T) -> T {
    let _alone = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    act()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: &str = "POSTRIDER_TEST_ALONE";

    /// In its own process, because children of other tests would hold the port too.
    #[test]
    fn an_address_can_be_taken_again_while_programs_are_started() {
        if std::env::var_os(ALONE).is_none() {
            let thread = std::thread::current();
            let mut this = Command::new(std::env::current_exe().unwrap());
            this.args(["--exact", thread.name().unwrap(), "--test-threads=1"]).env(ALONE, "");
            let output = this.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        take_again_while_programs_are_started();
    }

    fn take_again_while_programs_are_started() {
        use std::net::{Ipv4Addr, TcpListener};
        use std::sync::atomic::{AtomicBool, Ordering};

        let [.., high, low] = std::process::id().to_be_bytes();
        let own = Ipv4Addr::new(127, 77, high, low);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let starting = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert!(spawn(&mut Command::new("true")).unwrap().wait().unwrap().success());
                }
            });
            let taking = scope.spawn(move || {
                let mut listener = TcpListener::bind((own, 0)).unwrap();
                let address = listener.local_addr().unwrap();
                for _ in 0..200 {
                    listener = undisturbed(|| {
                        drop(listener);
                        TcpListener::bind(address).unwrap()
                    });
                }
            });
            // If either thread fails, the other one ends.
            let taken = taking.join();
            done.store(true, Ordering::Relaxed);
            starting.join().unwrap();
            taken.unwrap();
        });
    }
}
