//! The register of unfit sources, `fixtures/unfit.toml`: `run` and `doctor` report each of them, and rows arrive once
//! it is fixed.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use postrider::sandbox::postgres::{Cluster, Options};
use serde::Deserialize;
use serde_json::Value;

use super::attempt::{Refusal, judge, refused};
use crate::doctor::Report;
use crate::doctor::steps::World;
use crate::stage::Stage;
use support::broker::Broker;
use support::relay::Relay;
use support::relay_http::RelayHttp;
use support::wait::wait_until;
use support::{kafka, postgres, topic, unique};

/// Maximum time from the change to the end of a running relay.
const NOTICED: Duration = Duration::from_secs(40);
/// Rows of one test at a time. Most of a row's time is spent waiting, above all that of a running relay.
const THREADS: usize = 4;
const RUNNING_THREADS: usize = 8;

/// The file; its head explains the fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Register {
    given: BTreeMap<String, Given>,
    unfit: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    sql: String,
    #[serde(default)]
    settings: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    when: Vec<When>,
    given: Option<String>,
    server: Option<BTreeMap<String, String>>,
    #[serde(default)]
    versions: Versions,
    #[serde(default = "yes")]
    slot: bool,
    #[serde(default)]
    fresh: bool,
    role: Option<String>,
    #[serde(default)]
    settings: BTreeMap<String, String>,
    #[serde(default)]
    breaks: String,
    code: Option<String>,
    #[serde(default)]
    exit: i32,
    #[serde(default)]
    words: Vec<String>,
    #[serde(default)]
    never: Vec<String>,
    doctor: Option<String>,
    #[serde(default = "fail")]
    status: String,
    #[serde(default)]
    choice: bool,
    #[serde(default)]
    fixes: Vec<String>,
    #[serde(default)]
    adopted: String,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum When {
    Start,
    Running,
    Down,
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq, Eq)]
enum Versions {
    #[default]
    #[serde(rename = "one")]
    One,
    #[serde(rename = "18")]
    Eighteen,
    #[serde(rename = "all")]
    All,
}

const fn yes() -> bool {
    true
}

fn fail() -> String {
    "fail".to_owned()
}

fn register() -> &'static Register {
    static REGISTER: OnceLock<Register> = OnceLock::new();
    REGISTER.get_or_init(|| {
        let file = support::root().join("fixtures/unfit.toml");
        let register: Register = toml::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        for Row { name, when, code, doctor, .. } in &register.unfit {
            assert!(
                !when.is_empty() && (code.is_some() || doctor.is_some()),
                "{name} proves nothing"
            );
        }
        register
    })
}

/// A row on one server with one of its fixes.
struct Job {
    row: &'static Row,
    server: Server,
    fix: Option<&'static str>,
}

#[derive(Clone)]
enum Server {
    Shared(&'static Cluster),
    Own(Box<Options>),
}

fn servers(row: &Row) -> Vec<Server> {
    let Some(settings) = &row.server else {
        return match row.versions {
            Versions::All => postgres::versions().into_iter().map(Server::Shared).collect(),
            Versions::Eighteen => postgres::eighteen().into_iter().map(Server::Shared).collect(),
            Versions::One => postgres::representative().into_iter().map(Server::Shared).collect(),
        };
    };
    let installed = (row.versions != Versions::Eighteen).then(Options::default);
    let eighteen = (row.versions != Versions::One).then(postgres::eighteen_options).flatten();
    let with = |options: Options| {
        settings.iter().fold(options, |options, (name, value)| options.with(name, value))
    };
    installed.into_iter().chain(eighteen).map(with).map(Box::new).map(Server::Own).collect()
}

fn jobs(when: When) -> Vec<Job> {
    let rows = register().unfit.iter().filter(|row| row.when.contains(&when));
    rows.flat_map(|row| {
        let fixes: Vec<_> = match row.fixes.as_slice() {
            [] => vec![None],
            _ if when == When::Running => vec![None],
            fixes => fixes.iter().map(|fix| Some(fix.as_str())).collect(),
        };
        servers(row).into_iter().flat_map(move |server| {
            fixes.clone().into_iter().map(move |fix| Job { row, server: server.clone(), fix })
        })
    })
    .collect()
}

/// Runs all jobs, each in a thread that is named after its row.
fn each(jobs: &[Job], threads: usize, run: impl Fn(&Job) + Sync) {
    assert!(!jobs.is_empty(), "the register has no such row");
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let name = format!("{} {}", job.row.name, job.fix.unwrap_or_default());
                    let thread = Builder::new().name(name.clone());
                    let ended = std::thread::scope(|scope| {
                        thread.spawn_scoped(scope, || run(job)).unwrap().join()
                    });
                    if ended.is_err() {
                        failed.lock().unwrap().push(name);
                    }
                }
            });
        }
    });
    assert!(failed.lock().unwrap().is_empty(), "{:#?}", failed.lock().unwrap());
}

/// A database that a row breaks.
struct Case<'a> {
    row: &'static Row,
    world: World<'a>,
    url: String,
    role: String,
    table: String,
    written: u32,
}

impl<'a> Case<'a> {
    fn new(job: &Job, own: &'a mut Option<Cluster>, bootstrap: &str) -> Self {
        let row = job.row;
        let cluster = match &job.server {
            Server::Shared(cluster) => cluster,
            Server::Own(options) => &*own.insert(postgres::start(options)),
        };
        let stage = Stage::migrated(cluster, bootstrap, "unfit");
        let role = unique("unfit");
        let address = match &row.role {
            Some(attributes) => stage.database.create_role(&role, attributes),
            None => stage.database.address(),
        };
        let relay = stage.relay_at(&address);
        let world = World { cluster: own.as_mut(), relay, ..World::new(stage) };
        let mut case =
            Self { row, world, url: address.url(), role, table: String::new(), written: 0 };
        if let Some(given) = &row.given {
            let given = &register().given[given];
            case.run(&given.sql);
            case.set(&given.settings);
        }
        case.table = case.world.stage.sql().value("SELECT 'outbox'::regclass::oid");
        case
    }

    fn filled(&self, text: &str) -> String {
        let text = text.replace("$slot", self.world.stage.slot());
        text.replace("$role", &self.role).replace("$url", &self.url)
    }

    /// One line that ends with a semicolon after the other: slots and schema changes do not go together.
    fn run(&self, sql: &str) {
        let session = self.world.stage.sql();
        self.filled(sql).split(";\n").for_each(|statement| session.run(statement));
    }

    fn set(&mut self, settings: &BTreeMap<String, String>) {
        for (name, value) in settings {
            let value = self.filled(value);
            self.world.relay = self.world.relay.clone().set(name, &value);
        }
    }

    /// Commits one more row, under whatever name the table has.
    fn write(&mut self) {
        self.written += 1;
        let (table, number, sql) = (&self.table, self.written, self.world.stage.sql());
        let table = sql.value(&format!(
            "SELECT coalesce((SELECT oid::regclass::text FROM pg_class WHERE oid = {table}), 'outbox')"
        ));
        sql.run(&format!(
            "INSERT INTO {table} (aggregate_type, aggregate_id, event_type, payload) \
             VALUES ('t', '{number}', 'A', '{number}')"
        ));
    }

    /// The relay delivers one more row, and every row exactly once.
    fn deliver(&mut self) {
        self.write();
        self.world.relay.run_once();
        let stage = &self.world.stage;
        let records = topic::read(stage.bootstrap(), &[stage.topic("A")]);
        let number = |value: &Vec<u8>| String::from_utf8_lossy(value).parse::<u32>().unwrap();
        let mut delivered: Vec<_> =
            records.iter().map(|one| number(one.value.as_ref().unwrap())).collect();
        delivered.sort_unstable();
        assert_eq!(delivered, (1..=self.written).collect::<Vec<_>>());
    }

    fn break_it(&mut self) {
        self.run(&self.row.breaks);
        self.set(&self.row.settings);
    }

    fn words(&self) -> Vec<String> {
        self.row.words.iter().map(|words| self.filled(words)).collect()
    }

    fn assert(&self, refusal: &Refusal, code: &str) {
        refusal.assert(code, &self.words().iter().map(String::as_str).collect::<Vec<_>>());
        for words in &self.row.never {
            assert!(!refusal.text.contains(words), "`{words}` in: {}", refusal.text);
        }
    }

    /// `run` refuses the source, whether or not it may create a slot, and leaves the position as it is.
    fn refused(&self) -> Option<Refusal> {
        let code = self.row.code.as_deref()?;
        let before = self.slot();
        let refusal = refused(&self.world.relay, &["run", "--once"], self.row.exit);
        self.assert(&refusal, code);
        if self.row.settings.is_empty() && !before.is_empty() {
            let relay = self.world.relay.clone().creates_slot();
            self.assert(&refused(&relay, &["run", "--once"], self.row.exit), code);
        }
        assert_eq!(self.slot(), before, "nothing was acknowledged or created");
        Some(refusal)
    }

    fn slot(&self) -> Vec<Vec<Option<String>>> {
        let slot = self.world.stage.slot();
        let columns = "plugin, confirmed_flush_lsn";
        self.world
            .stage
            .sql()
            .rows(&format!("SELECT {columns} FROM pg_replication_slots WHERE slot_name = '{slot}'"))
    }

    fn report(&self, id: &str) -> Report {
        Report::asked(&self.world.relay, &["--only", id])
    }

    /// `doctor` reports what `run` refuses.
    fn reported(&self, refusal: Option<&Refusal>) -> Option<Report> {
        let id = self.row.doctor.as_deref()?;
        let report = self.report(id);
        assert_eq!(report.status(id), self.row.status, "{}", report.finding(id));
        assert!(self.row.status != "fail" || report.exit() == Some(1), "{:?}", report.exit());
        if let Some(refusal) = refusal {
            assert_eq!(report.code(id), refusal.code);
            assert!(refusal.text.starts_with(report.finding(id)), "{}", report.finding(id));
        } else {
            for words in self.words() {
                assert!(report.fix(id).contains(&words), "`{words}` in {}", report.fix(id));
            }
        }
        if self.row.choice {
            assert_eq!(report.steps(id), &[] as &[Value]);
            assert_eq!(report.fix(id), refusal.unwrap().help);
            assert_ne!(
                self.report("progress.position").status_or_none("progress.position"),
                Some("fail")
            );
        }
        Some(report)
    }

    /// Breaks the source, has it refused and reported, fixes it, and delivers.
    fn hold(mut self, fix: Option<&str>, original: &Relay) {
        self.break_it();
        let refusal = self.refused();
        let report = self.reported(refusal.as_ref());
        match fix {
            // A second start changes nothing.
            None => {
                assert!(self.world.stage.records().len() <= 1, "rows were sent");
                return drop(self.refused());
            }
            Some("hint") => self.run(&statements(&refusal.unwrap().help)),
            Some("doctor") => self.world.fix(&report.unwrap(), self.row.doctor.as_ref().unwrap()),
            Some("settings") => self.world.relay = original.clone(),
            Some("adopt") => self.adopt(),
            Some(sql) => self.run(sql),
        }
        if let Some(id) = &self.row.doctor {
            let is_refused = self.row.code.is_some() && fix != Some("doctor");
            wait_until("the check to pass", || {
                let report = self.report(id);
                report.all_pass(id) || is_refused && report.status(id) != "fail"
            });
        }
        if !self.row.slot && self.slot().is_empty() {
            self.world.stage.create_slot();
        }
        self.deliver();
        self.world.end();
    }

    /// Adopts the slot's position, which a plan does not do.
    fn adopt(&self) {
        let adopt = |arguments: &[&str]| {
            let (status, printed) = self.world.relay.start(arguments).wait_printed();
            assert!(status.success(), "{status}: {printed:?}");
            printed.join("\n")
        };
        assert!(adopt(&["adopt"]).contains("nothing was written"));
        self.refused();
        let adopted = adopt(&["adopt", "--execute"]);
        assert!(adopted.ends_with("adopted") && adopted.contains(&self.row.adopted), "{adopted}");
    }
}

/// The statements that a hint consists of, or ends its first words with.
fn statements(hint: &str) -> String {
    const VERBS: [&str; 5] = ["ALTER ", "BEGIN;", "COMMIT", "CREATE ", "SELECT "];
    let begin = VERBS.iter().filter_map(|verb| hint.find(verb)).min().expect("SQL in the hint");
    let is_sql =
        |text: &&str| VERBS.iter().any(|verb| format!("{};", text.trim()).starts_with(verb));
    hint[begin..].split(';').take_while(is_sql).collect::<Vec<_>>().join(";\n")
}

#[test]
fn g1_a_source_unfit_at_the_start_is_refused_until_it_is_fixed() {
    each(&jobs(When::Start), THREADS, |job| {
        let (broker, mut own) = (Broker::embedded(), None);
        let mut case = Case::new(job, &mut own, &broker.bootstrap());
        if job.row.slot {
            case.world.stage.create_slot();
            case.write();
        }
        let original = case.world.relay.clone();
        case.hold(job.fix, &original);
    });
}

/// Postgres tells nobody that it no longer sends rows.
#[test]
fn g1_a_source_that_becomes_unfit_under_a_relay_ends_it_within_seconds() {
    each(&jobs(When::Running), RUNNING_THREADS, |job| {
        let (broker, mut own) = (Broker::embedded(), None);
        let mut case = Case::new(job, &mut own, &broker.bootstrap());
        case.world.stage.create_slot();
        case.write();
        let mut running = case.world.relay.start(&["run", "--output", "json"]);
        let face = RelayHttp::of(&mut running);
        running.wait_for_log("caught up");
        face.wait_ready(200);
        case.break_it();
        let changed = Instant::now();
        let outcome = running.outcome();
        let after = changed.elapsed();
        case.assert(&judge(&outcome, job.row.exit), job.row.code.as_deref().unwrap());
        assert!(after < NOTICED, "noticed after {after:?}");
        assert!(!face.answers(), "it is not ready any more");
    });
}

#[test]
fn g1_a_source_made_unfit_while_the_relay_was_down_is_refused_until_it_is_fixed() {
    let Some(kafka) = kafka::shared() else { return };
    let bootstrap = kafka.bootstrap();
    each(&jobs(When::Down), THREADS, |job| {
        let mut own = None;
        let mut case = Case::new(job, &mut own, &bootstrap);
        let relay = case.world.relay.set("kafka.delivery", "exactly_once").unprepared();
        case.world.relay = relay.creates_slot();
        topic::create(&bootstrap, &case.world.stage.topic("A"), 1, &[]);
        if !job.row.fresh {
            case.world.relay.clone().expect_log("created slot").run_once();
            case.deliver();
        }
        let original = case.world.relay.clone();
        case.hold(job.fix, &original);
    });
}
