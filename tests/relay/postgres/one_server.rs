//! What is known about a source, and its rows, come from one server.

use std::io::copy;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use postrider::sandbox::postgres::Address;

use crate::delivery::backlog::grow;
use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;

/// Starts; each chooses one of two servers.
const STARTS: usize = 8;

/// Two clusters with database, slot and publication of the same names.
fn pair(bootstrap: &str, stem: &str) -> Option<[Stage; 2]> {
    let first = Stage::new(postgres::installed(), bootstrap, stem);
    let second = Stage::named(postgres::eighteen()?, bootstrap, first.slot());
    second.create_slot();
    Some([first, second])
}

/// The first server's address, by a role that the other lets in with the same password.
fn login([first, second]: &[Stage; 2]) -> Address {
    let address = first.database.create_role(first.slot(), "SUPERUSER");
    let (role, password) = (&address.user, address.password.as_deref().unwrap());
    second.sql().run(&format!("CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{password}'"));
    address
}

fn ports(stages: &[Stage; 2]) -> [u16; 2] {
    stages.each_ref().map(|stage| stage.database.address().port)
}

#[test]
fn g1_of_several_hosts_one_is_chosen_for_both_connections() {
    let broker = Broker::embedded();
    let Some(stages) = pair(&broker.bootstrap(), "chosen") else { return };
    let [one, two] = ports(&stages);
    let Address { user, password, database, .. } = login(&stages);
    let (login, hosts) =
        (format!("{user}:{}", password.unwrap()), format!("127.0.0.1:{one},127.0.0.1:{two}"));
    let url = format!("postgres://{login}@{hosts}/{database}?load_balance_hosts=random");
    for _ in 0..STARTS {
        let mut running = stages[0].relay().set("source.url", &url).run();
        // A stream from the other server would be told of, as below.
        running.wait_for_log("\"streaming\"");
        running.stop();
    }
}

#[test]
fn g1_a_stream_from_another_server_than_the_facts_is_not_carried_on() {
    let broker = Broker::embedded();
    let Some(stages) = pair(&broker.bootstrap(), "balanced") else { return };
    let balancer = Balancer::start(ports(&stages), &[0, 1]);
    let address = Address { port: balancer.port, ..login(&stages) };
    let relay = stages[0].relay_at(&address).expect_log("reached different servers");
    let mut running = relay.run();
    running.wait_for_log("reached different servers");
    stages[0].insert("A", 10);
    stages[1].insert("A", 10);
    balancer.settle();
    running.wait_for_log("\"streaming\"");
    stages[0].wait_acknowledged(stages[0].log_end());
    running.stop();
    assert_eq!(stages[0].records().len(), 10);
}

/// Or the rows of the one would be passed over, by as much as the other's slot of that name is ahead.
#[test]
fn g1_windows_of_a_backlog_from_another_server_than_the_stream_are_not_read() {
    let broker = Broker::embedded();
    let Some(stages) = pair(&broker.bootstrap(), "windows") else { return };
    let oracle = stages[0].oracle();
    grow(&stages[0], 5);
    let balancer = Balancer::start(ports(&stages), &[0, 0, 1]);
    let address = Address { port: balancer.port, ..login(&stages) };
    let relay = stages[0].relay_at(&address).expect_log("reached another server than the stream");
    let running = relay.run();
    stages[0].wait_acknowledged(stages[0].log_end());
    running.stop();
    stages[0].verdict(&oracle, &[]).assert_exactly_once();
}

/// Sends connections to the servers in turns, until it is told to settle for the first.
struct Balancer {
    port: u16,
    settled: Arc<AtomicBool>,
}

impl Balancer {
    fn start(targets: [u16; 2], turns: &'static [usize]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let settled = Arc::new(AtomicBool::new(false));
        let (known, turn) = (Arc::clone(&settled), AtomicUsize::new(0));
        // Ends with this process.
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let turn = turn.fetch_add(1, Ordering::SeqCst) % turns.len();
                let target = if known.load(Ordering::SeqCst) { 0 } else { turns[turn] };
                join(client, TcpStream::connect(("127.0.0.1", targets[target])).unwrap());
            }
        });
        Self { port, settled }
    }

    fn settle(&self) {
        self.settled.store(true, Ordering::SeqCst);
    }
}

fn join(client: TcpStream, server: TcpStream) {
    let ways = [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)];
    for (mut from, mut to) in ways {
        std::thread::spawn(move || {
            // Either end may go away first.
            let _ = copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}
