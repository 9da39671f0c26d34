//! An SMTP server that keeps what it takes (RFC 5321), and fails as it is told to.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A mail as it was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mail {
    pub to: String,
    /// Headers and body, with the line ends that were sent.
    pub text: String,
}

impl Mail {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// How the server fails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// Greets everybody with 554: it has no mail service for them.
    NoService,
    /// Takes a mail, and breaks the connection instead of saying so.
    LostReply,
    /// Has no room for mails at the moment: 452.
    Full,
}

/// What the test and the sessions share.
#[derive(Debug, Default)]
struct State {
    fault: Fault,
    mails: Vec<Mail>,
    sessions: u32,
}

/// The server; recipients whose name begins with `gone` are refused with 550.
#[derive(Debug)]
pub struct SmtpServer {
    port: u16,
    state: Arc<Mutex<State>>,
}

impl SmtpServer {
    /// Listens at a free port of this machine.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || serve(&stream, &shared));
            }
        });
        Self { port, state }
    }

    pub fn url(&self) -> String {
        format!("smtp://127.0.0.1:{}", self.port)
    }

    pub fn fail(&self, fault: Fault) {
        self.state.lock().unwrap().fault = fault;
    }

    /// All mails so far.
    pub fn mails(&self) -> Vec<Mail> {
        self.state.lock().unwrap().mails.clone()
    }

    /// How many connections there were.
    pub fn sessions(&self) -> u32 {
        self.state.lock().unwrap().sessions
    }
}

/// One connection, to its end; a client that breaks it is none of the server's.
fn serve(stream: &TcpStream, state: &Mutex<State>) {
    let fault = {
        let mut state = state.lock().unwrap();
        state.sessions += 1;
        state.fault
    };
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut out = stream;
    let mut reply = |text: &str| out.write_all(format!("{text}\r\n").as_bytes()).is_ok();
    if fault == Fault::NoService {
        reply("554 no service for you");
        return;
    }
    reply("220 test ESMTP");
    let mut to = String::new();
    while let Some(line) = lines.next() {
        let verb = line.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase();
        let is_open = match verb.as_str() {
            "EHLO" => reply("250 test"),
            "MAIL" if fault == Fault::Full => reply("452 no room"),
            "RCPT" if line.contains("<gone") => reply("550 no such user"),
            "RCPT" => {
                line.split(['<', '>']).nth(1).unwrap_or_default().clone_into(&mut to);
                reply("250 ok")
            }
            "DATA" => {
                reply("354 go on");
                let mut text = String::new();
                for line in lines.by_ref().take_while(|line| line != ".") {
                    text.extend([line.as_str(), "\r\n"]);
                }
                state.lock().unwrap().mails.push(Mail { to: to.clone(), text });
                fault != Fault::LostReply && reply("250 taken")
            }
            "QUIT" => {
                reply("221 bye");
                false
            }
            "MAIL" | "RSET" | "NOOP" => reply("250 ok"),
            _ => reply("502 not implemented"),
        };
        if !is_open {
            return;
        }
    }
}
