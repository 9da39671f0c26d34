//! Real Apache Kafka in KRaft mode, without Docker: the jars that `docker/kafka/fetch` copied, run
//! by the installed Java with a small heap on loopback ports.
//!
//! Invariant: the brokers run as an unprivileged account, and end with the `Kafka` value or with
//! this process, whichever is first. Where no test wants logins they ask for none: other users of the
//! machine can spoil topics of tests, but a broker holds no secret of theirs and runs no commands
//! (Kafka 4 refuses the login modules that load code, whoever sets `sasl.jaas.config`).

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use postrider_sandbox::account::Account;
use postrider_sandbox::port;
use postrider_sandbox::spawn::spawn;
use postrider_sandbox::watchdog::{LastSignal, Watchdog};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseProducer, Producer as _};
use rustix::process::{Pid, Signal, kill_process};

pub use super::kafka_settings::{
    ALLOWED_USER, DENIED_USER, KEYSTORE, Options, PASSWORD, PLAIN_LOGINS, READING_USER,
    plain_logins,
};
use super::kafka_settings::{CLUSTER_ID, Ports, SCRAM};
use super::wait::within;
use super::{java, skip, topic};

/// A broker is up after some 3 s on an idle machine; builds may run beside the tests.
const READY_LIMIT: Duration = Duration::from_secs(90);

/// How often other ports are tried when one found free was taken before the broker bound it.
const PORT_TRIES: u32 = 5;

/// Heap of a broker, in MiB.
const HEAP_MIB: u32 = 256;
/// The same where it is measured.
const HEAP_MEASURED_MIB: u32 = 1_024;

/// Kafka can refuse times that are too far ahead since this version (KIP-937).
pub const TIMES_AHEAD: (u32, u32) = (3, 6);

/// A running cluster.
#[derive(Debug)]
pub struct Kafka {
    brokers: Vec<Broker>,
    watchdog: Watchdog,
    options: Options,
    account: Account,
    jars: PathBuf,
}

#[derive(Debug)]
struct Broker {
    ports: Ports,
    folder: PathBuf,
    child: Option<Child>,
}

/// The single broker that most tests share, or `None` where this machine cannot run Kafka; that is
/// then said once, and fails where `CI=true`.
pub fn shared() -> Option<&'static Kafka> {
    static SHARED: OnceLock<Option<Kafka>> = OnceLock::new();
    SHARED.get_or_init(|| start(&Options::default())).as_ref()
}

/// A broker with logins, access lists, and no topic but those that somebody creates.
pub fn strict() -> Option<&'static Kafka> {
    static STRICT: OnceLock<Option<Kafka>> = OnceLock::new();
    let options = Options { sasl: true, auto_create: false, ..Options::default() };
    STRICT.get_or_init(|| start(&options)).as_ref()
}

/// A cluster of the test's own.
pub fn start(options: &Options) -> Option<Kafka> {
    match java::jars("kafka") {
        Ok(jars) => Some(Kafka::start(options, &jars)),
        Err(why) => {
            skip::skip("Apache Kafka", &why);
            None
        }
    }
}

/// Of the name of the clients' jar.
fn version_of(name: &str) -> Option<(u32, u32)> {
    let mut numbers = name.strip_prefix("kafka-clients-")?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

impl Kafka {
    /// Major and minor version of the brokers.
    pub fn version(&self) -> (u32, u32) {
        let names = fs::read_dir(&self.jars).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter_map(|name| version_of(name.to_str()?)).max().expect("a jar of Kafka's")
    }

    /// Whether these brokers are of this version at least; otherwise says that `what` is left out, which rests on it.
    pub fn is_since(&self, since: (u32, u32), what: &str) -> bool {
        let version = self.version();
        if version < since {
            let ((major, minor), (old_major, old_minor)) = (since, version);
            let why = format!("Apache Kafka {old_major}.{old_minor} is older than {major}.{minor}");
            skip::skip(what, &why);
        }
        version >= since
    }

    fn start(options: &Options, jars: &Path) -> Self {
        for attempt in 1.. {
            let mut kafka = Self::format(options, jars);
            match (0..options.brokers)
                .try_for_each(|index| kafka.spawn(index))
                .and_then(|()| kafka.await_ready())
            {
                Ok(()) => return kafka,
                Err(log) => assert!(
                    log.contains("Address already in use") && attempt < PORT_TRIES,
                    "Kafka did not start: {log}"
                ),
            }
        }
        unreachable!("the loop above returns or panics")
    }

    /// Lays out the brokers' folders and formats their storage, all brokers at a time.
    fn format(options: &Options, jars: &Path) -> Self {
        let account = Account::unprivileged().unwrap();
        let home = account.make_folder("postrider-kafka-").unwrap();
        let watchdog = Watchdog::new(&home).unwrap();
        let ports: Vec<Ports> = (0..options.brokers).map(|_| free_ports()).collect();
        let brokers: Vec<Broker> = (0..options.brokers)
            .map(|index| {
                let folder = home.join((index + 1).to_string());
                fs::create_dir(&folder).unwrap();
                account.own(&folder).unwrap();
                let properties = options.properties(index, &ports, &folder);
                fs::write(folder.join("server.properties"), properties).unwrap();
                if let Some((certificate, key)) = &options.tls {
                    fs::write(folder.join(KEYSTORE), format!("{key}{certificate}")).unwrap();
                }
                Broker { ports: ports[index], folder, child: None }
            })
            .collect();
        let kafka =
            Self { brokers, watchdog, options: options.clone(), account, jars: jars.to_path_buf() };
        let tools: Vec<Child> = (0..options.brokers)
            .map(|index| {
                let user = format!("{SCRAM}=[name={ALLOWED_USER},password={PASSWORD}]");
                let mut format = kafka.java(index, "kafka.tools.StorageTool");
                format
                    .args(["format", "-t", CLUSTER_ID, "--add-scram", &user, "-c"])
                    .arg(kafka.brokers[index].folder.join("server.properties"))
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped());
                spawn(&mut format).unwrap()
            })
            .collect();
        for tool in tools {
            let Output { status, stdout, stderr } = tool.wait_with_output().unwrap();
            let words = [stdout, stderr].concat();
            assert!(status.success(), "storage: {}", String::from_utf8_lossy(&words));
        }
        kafka
    }

    /// Addresses of all brokers, as `bootstrap.servers` wants them.
    pub fn bootstrap(&self) -> String {
        self.addresses(|ports| ports.plain)
    }

    /// The same for the listener that wants a login.
    pub fn sasl_bootstrap(&self) -> String {
        assert!(self.options.sasl, "this cluster has no SASL listener");
        self.addresses(|ports| ports.sasl)
    }

    /// The same for the listener that wants TLS and a login.
    pub fn tls_bootstrap(&self) -> String {
        assert!(self.options.tls.is_some(), "this cluster has no TLS listener");
        self.addresses(|ports| ports.tls).replace("127.0.0.1", "localhost")
    }

    /// Where a broker's key and certificate are.
    pub fn keystore(&self, index: usize) -> PathBuf {
        self.brokers[index].folder.join(KEYSTORE)
    }

    /// Ports of the listeners that advertise others.
    pub fn proxied_ports(&self) -> Vec<u16> {
        self.brokers.iter().map(|broker| broker.ports.proxied).collect()
    }

    /// The process of a broker that runs, from 0.
    pub fn process(&self, index: usize) -> u32 {
        self.brokers[index].child.as_ref().expect("the broker runs").id()
    }

    /// kill -9 of one broker, from 0.
    pub fn kill_broker(&mut self, index: usize) {
        let Some(mut child) = self.brokers[index].child.take() else { return };
        child.kill().unwrap();
        child.wait().unwrap();
        self.watchdog.free(child.id()).unwrap();
    }

    /// Starts a killed broker again on its ports and data, and waits until all brokers answer.
    pub fn start_broker(&mut self, index: usize) {
        self.spawn(index).and_then(|()| self.await_ready()).unwrap();
    }

    /// Another setting of a broker, for its next start.
    pub fn configure(&self, index: usize, name: &str, value: &str) {
        let path = self.brokers[index].folder.join("server.properties");
        // Of two lines of a name the later one holds.
        let text = fs::read_to_string(&path).unwrap() + &format!("{name}={value}\n");
        fs::write(path, text).unwrap();
    }

    /// Makes one broker fall silent without closing its connections, until `resume_broker`.
    pub fn freeze_broker(&self, index: usize) {
        self.signal(index, Signal::STOP);
    }

    /// Ends a freeze.
    pub fn resume_broker(&self, index: usize) {
        self.signal(index, Signal::CONT);
    }

    fn signal(&self, index: usize, signal: Signal) {
        let child = self.brokers[index].child.as_ref().expect("the broker runs");
        let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn spawn(&mut self, index: usize) -> Result<(), String> {
        let folder = self.brokers[index].folder.clone();
        let log = File::create(folder.join("log")).unwrap();
        let mut java = self.java(index, "kafka.Kafka");
        java.arg(folder.join("server.properties")).stdout(log.try_clone().unwrap()).stderr(log);
        let child = spawn(&mut java).map_err(|error| error.to_string())?;
        self.watchdog.hold(child.id(), LastSignal::Kill).unwrap();
        self.brokers[index].child = Some(child);
        Ok(())
    }

    /// Waits until the cluster's metadata lists every broker that was started.
    fn await_ready(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + READY_LIMIT;
        let consumer: BaseConsumer = topic::client(&self.bootstrap()).create().unwrap();
        let listed = within(READY_LIMIT, || {
            for broker in &mut self.brokers {
                if let Some(child) = &mut broker.child
                    && let Some(status) = child.try_wait().unwrap()
                {
                    return Some(Err(format!("{status}: {}", broker.log())));
                }
            }
            let running = self.brokers.iter().filter(|broker| broker.child.is_some()).count();
            let metadata = consumer.fetch_metadata(None, Duration::from_millis(500));
            metadata.is_ok_and(|metadata| metadata.brokers().len() >= running).then_some(Ok(()))
        });
        listed.unwrap_or_else(|| {
            let logs: Vec<String> = self.brokers.iter().map(Broker::log).collect();
            Err(format!("not ready within {READY_LIMIT:?}: {}", logs.join("\n")))
        })?;
        self.warm_up(deadline)
    }

    /// Waits until producers are given their ids; a fresh cluster first says that it is loading.
    fn warm_up(&self, deadline: Instant) -> Result<(), String> {
        let producer: BaseProducer = topic::client(&self.bootstrap())
            .set("transactional.id", "warm-up")
            .create()
            .map_err(|error| error.to_string())?;
        let left = deadline.saturating_duration_since(Instant::now());
        producer.init_transactions(left).map_err(|error| format!("no producer id: {error}"))
    }

    /// Runs one of Kafka's own tools, which must succeed.
    pub fn tool(&self, main_class: &str, arguments: &[&str]) {
        let mut command = self.java(0, main_class);
        let output = command
            .args(["--bootstrap-server", &self.bootstrap()])
            .args(arguments)
            .output()
            .unwrap();
        let words = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{main_class}: {}", String::from_utf8_lossy(&words));
    }

    fn java(&self, index: usize, main_class: &str) -> Command {
        let folder = &self.brokers[index].folder;
        let (purpose, heap_mib) = if self.options.measured {
            (java::Purpose::Measurement, HEAP_MEASURED_MIB)
        } else {
            (java::Purpose::Test, HEAP_MIB)
        };
        let mut command = java::command(purpose, self.account, folder, &self.jars, heap_mib);
        if let Some(keys) = &self.options.token_keys {
            // Kafka 4 asks nobody else for keys (CVE-2025-27817).
            command.arg(format!("-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}"));
        }
        command.arg(main_class);
        command
    }

    fn addresses(&self, port: impl Fn(&Ports) -> u16) -> String {
        let addresses: Vec<String> = self
            .brokers
            .iter()
            .map(|broker| format!("127.0.0.1:{}", port(&broker.ports)))
            .collect();
        addresses.join(",")
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        for child in self.brokers.iter_mut().filter_map(|broker| broker.child.take()) {
            let mut child = child;
            // Killing fails only for a broker that has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Broker {
    /// The end of its log.
    fn log(&self) -> String {
        let text = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }
}

fn free_ports() -> Ports {
    let free = || port::free().unwrap();
    Ports { plain: free(), controller: free(), sasl: free(), tls: free(), proxied: free() }
}
