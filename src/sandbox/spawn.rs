//! Starts child processes (`spawn`), and runs code while none is being started (`undisturbed`).
//!
//! Between fork and exec a child has copies of all our sockets, so an address that we close then stays in
//! use. Code that closes an address and binds it again therefore keeps other threads from starting a process
//! meanwhile.

use std::io;
use std::process::{Child, Command};
use std::sync::{PoisonError, RwLock};

static STARTING: RwLock<()> = RwLock::new(());

/// Starts the command's program; many may be started at the same time.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    let _starting = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    command.spawn()
}

/// Does this while [`spawn`] is starting nothing.
pub fn undisturbed<T>(act: impl FnOnce() -> T) -> T {
    let _alone = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    act()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set where the test has a process of its own.
    const ALONE: &str = "POSTRIDER_TEST_ALONE";

    /// A child that is between fork and exec would have the port. In a process of its own: other tests
    /// start programs by themselves, and theirs would have it, too.
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

        // An address of our own: on 127.0.0.1 another process may be given the port meanwhile.
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
            // Whichever fails, the other one ends.
            let taken = taking.join();
            done.store(true, Ordering::Relaxed);
            starting.join().unwrap();
            taken.unwrap();
        });
    }
}
