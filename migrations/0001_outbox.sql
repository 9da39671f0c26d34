-- The transactional outbox and the publication that the relay reads. May be run again.
--
-- Write the row in the transaction that it tells of. It can be deleted in the same transaction: the
-- relay reads the log, not the table.

CREATE TABLE IF NOT EXISTS outbox (
    -- The consumer's idempotency key; a version 7 UUID made by the application keeps the index small.
    id             uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    aggregate_type text        NOT NULL,
    -- The record's key: rows of one aggregate stay in the order of their commits.
    aggregate_id   text        NOT NULL,
    -- The topic, unless [route] says otherwise.
    event_type     text        NOT NULL,
    -- NULL is a tombstone.
    payload        jsonb,
    created_at     timestamptz NOT NULL DEFAULT now(),
    -- Postgres sends a row as text, in one message, which it cannot build beyond 1 GiB: a larger row
    -- would stop the slot for good. So the text is measured, that of all columns together;
    -- pg_column_size would see what a value takes compressed. 16 MiB is far above Kafka's own limit
    -- (1 MiB unless raised; what exceeds only that becomes a dead letter), and even where another
    -- encoding makes four bytes of one, the row is within the relay's source.frame_max (64 MiB).
    CONSTRAINT outbox_row_size CHECK (
        coalesce(octet_length(aggregate_type), 0)::bigint
        + coalesce(octet_length(aggregate_id), 0)::bigint
        + coalesce(octet_length(event_type), 0)::bigint
        + coalesce(octet_length(payload::text), 0)::bigint <= 16777216
    )
);

-- Only inserts are messages. The publication must exist before the replication slot: what is written
-- in between is passed over. An outbox may be partitioned later: its rows come under its own name then.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_publication WHERE pubname = 'postrider') THEN
        CREATE PUBLICATION postrider FOR TABLE outbox
            WITH (publish = 'insert', publish_via_partition_root = true);
    ELSIF NOT EXISTS (
        -- Made for the outbox of another schema, maybe. Compared by name: a cast to regclass needs rights on the
        -- schema, and Postgres may cast what the other conditions leave out.
        SELECT FROM pg_publication_tables
        WHERE pubname = 'postrider' AND (schemaname, tablename) = (
            SELECT nspname, relname FROM pg_class JOIN pg_namespace AS schema ON schema.oid = relnamespace
            WHERE pg_class.oid = 'outbox'::regclass
        )
    ) THEN
        ALTER PUBLICATION postrider ADD TABLE outbox;
    END IF;
END
$$;
