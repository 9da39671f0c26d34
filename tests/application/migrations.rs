//! `migrate()` where a role has few rights, and where sessions have another isolation level.

use postrider::sandbox::postgres::{Cluster, Options};
use postrider::shop::connect;
use postrider_patterns::migrations::{MigrateError, Piece, migrate};

/// As after an update of the library, when the publication is there already.
#[tokio::test]
async fn a_piece_is_made_anew_by_a_role_that_owns_it_and_nothing_else() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let mut client = connect(&cluster.unix_url()).await.unwrap();
    let roles = "CREATE ROLE team_a; CREATE ROLE team_b; CREATE DATABASE teams";
    for statement in roles.split("; ") {
        client.batch_execute(statement).await.unwrap();
    }
    client.batch_execute("GRANT CREATE ON DATABASE teams TO team_a, team_b").await.unwrap();
    let teams = cluster.address().database("teams").unix_url();
    client = connect(&teams).await.unwrap();
    client.batch_execute("SET ROLE team_a").await.unwrap();
    migrate(&mut client, "a", &Piece::ALL).await.unwrap();
    client.batch_execute("COMMENT ON TABLE a.outbox_sequences IS NULL").await.unwrap();
    migrate(&mut client, "a", &Piece::ALL).await.unwrap();

    // Another one's outbox is published by a third: it may not look into the first one's schema.
    client.batch_execute("RESET ROLE").await.unwrap();
    migrate(&mut client, "b", &[Piece::Outbox]).await.unwrap();
    client
        .batch_execute(
            "ALTER SCHEMA b OWNER TO team_b; ALTER TABLE b.outbox OWNER TO team_b;
             ALTER TABLE b.outbox_sequences OWNER TO team_b;
             DO $$ DECLARE function regprocedure; BEGIN
                 FOR function IN SELECT oid FROM pg_proc WHERE pronamespace = 'b'::regnamespace LOOP
                     EXECUTE format('ALTER FUNCTION %s OWNER TO team_b', function);
                 END LOOP;
             END $$;
             COMMENT ON TABLE b.outbox_sequences IS NULL; SET ROLE team_b",
        )
        .await
        .unwrap();
    migrate(&mut client, "b", &[Piece::Outbox]).await.unwrap();
}

#[tokio::test]
async fn an_error_of_migrate_names_the_situation_and_the_fix() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let owner = connect(&cluster.unix_url()).await.unwrap();
    owner.batch_execute("CREATE ROLE app").await.unwrap();
    let mut client = connect(&cluster.unix_url()).await.unwrap();
    client.batch_execute("SET ROLE app").await.unwrap();
    let error = migrate(&mut client, "public", &[Piece::Inbox]).await.unwrap_err();
    assert!(matches!(error, MigrateError::Forbidden(_)), "{error:?}");
    assert!(error.hint().unwrap().contains("GRANT CREATE ON SCHEMA"), "{error:?}");
    assert_eq!(error.database().code().unwrap().code(), "42501");
}

/// Their snapshots are of the time before they had the lock.
#[tokio::test]
async fn services_of_any_isolation_level_may_all_migrate_at_once() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let mut starts = Vec::new();
    for level in ["read committed", "repeatable read", "serializable"].repeat(3) {
        let mut client = connect(&cluster.unix_url()).await.unwrap();
        let level = format!("SET default_transaction_isolation = '{level}'");
        client.batch_execute(&level).await.unwrap();
        starts.push(tokio::spawn(
            async move { migrate(&mut client, "messaging", &Piece::ALL).await },
        ));
    }
    for start in starts {
        start.await.unwrap().unwrap();
    }
}
