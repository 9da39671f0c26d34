//! Starting programs, and doing what no program may be started beside.
//!
//! Enters: a command. Leaves: its process. What always holds: between the two halves of a start (fork and
//! exec) a child has copies of all our sockets, so that an address which we give up is still taken; whoever
//! gives one up and takes it again keeps others from starting anything meanwhile.

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

    /// A child that is between fork and exec would have the port.
    #[test]
    fn an_address_can_be_taken_again_while_programs_are_started() {
        use std::net::TcpListener;
        use std::sync::atomic::{AtomicBool, Ordering};

        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert!(spawn(&mut Command::new("true")).unwrap().wait().unwrap().success());
                }
            });
            let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            for _ in 0..200 {
                listener = undisturbed(|| {
                    drop(listener);
                    TcpListener::bind(address).unwrap()
                });
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
