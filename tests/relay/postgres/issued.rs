//! `source.login = "rds_iam"` before a real server that has the signature of each password checked, as RDS has.

use postrider::sandbox::postgres::Options;

use super::direct::encrypted;
use crate::stage::Stage;
use support::broker::Broker;
use support::iam_directory::{ACCESS_KEY, IamDirectory, REGION, SECRET_KEY};
use support::relay::Relay;

const ROLE: &str = "iam_role";

#[test]
fn a_password_is_signed_for_each_connect_and_checked_by_the_server() {
    let directory = IamDirectory::start();
    let rule = format!("hostssl all {ROLE} 127.0.0.1/32 {}", directory.rule());
    let folder = tempfile::tempdir().unwrap();
    let options = Options { hba: vec![rule], ..Options::default() };
    let (cluster, root) = encrypted(options, folder.path());
    let broker = Broker::embedded();
    let stage = Stage::new(&cluster, &broker.bootstrap(), "issued");
    stage
        .sql()
        .run(&format!("CREATE ROLE {ROLE} LOGIN REPLICATION; GRANT SELECT ON outbox TO {ROLE}"));
    let address = stage.database.address().login_as(ROLE, None).url();
    let signed = |url: &str, secret: &str| -> Relay {
        stage
            .relay()
            .set("source.url", url)
            .set("source.login", "rds_iam")
            .set("source.aws_region", REGION)
            .set("retry.login_give_up_after", "0s")
            .variable("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .variable("AWS_SECRET_ACCESS_KEY", secret)
    };
    let url = format!("{address}?sslmode=verify-full&sslrootcert={root}");
    stage.insert("A", 1);
    let relay = signed(&url, SECRET_KEY).allow_log("trying again");
    let mut running = relay.run();
    stage.wait_for_records(1);
    running.wait_for_log("streaming");
    let before = directory.let_in();
    assert!(before > 0);
    stage.sql().run(&format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{ROLE}'"
    ));
    stage.insert("A", 1);
    stage.wait_for_records(2);
    running.stop();
    assert!(directory.let_in() > before, "it logs in anew, with another password");
    // Signed with another key.
    let refused = signed(&url, "another secret").run().outcome();
    assert_eq!(refused.status.code(), Some(77), "{:#?}", refused.log);
    // The server asks for the password as it is, so nobody else may see the connection.
    let clear = signed(&address, SECRET_KEY).run().outcome();
    assert_eq!(clear.status.code(), Some(78), "{:#?}", clear.log);
    assert!(clear.log.concat().contains("sslmode"), "{:#?}", clear.log);
}
