#!/bin/bash
# Run once by the postgres image, in an empty data folder: a database for each service, each with an outbox and its
# publication, and a role for the relays that may read the outboxes and replicate, and nothing else. The other tables
# are made by `shop migrate`.
set -eu

as_owner() {
  psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" "$@"
}

as_owner --dbname "$POSTGRES_DB" --set password="$RELAY_PASSWORD" <<'SQL'
CREATE ROLE postrider LOGIN REPLICATION PASSWORD :'password';
SQL

for database in orders payments inventory; do
  as_owner --dbname "$POSTGRES_DB" --command "CREATE DATABASE $database"
  as_owner --dbname "$database" --file /migrations/0001_outbox.sql
  as_owner --dbname "$database" --command "GRANT SELECT ON outbox TO postrider"
done
