#!/bin/bash
# Run once by the postgres image, in an empty data folder: the tables, the publication, and a role
# for the relay that may read the outbox and replicate, and nothing else.
set -eu

as_owner() {
  psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 \
    --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" "$@"
}

for script in /migrations/*.sql; do
  as_owner --file "$script"
done

as_owner --set password="$RELAY_PASSWORD" <<'SQL'
CREATE ROLE postrider LOGIN REPLICATION PASSWORD :'password';
GRANT SELECT ON outbox TO postrider;
SQL

# Something to sell.
as_owner <<'SQL'
INSERT INTO stock (sku, available) VALUES ('tea', 1000) ON CONFLICT DO NOTHING;
SQL
