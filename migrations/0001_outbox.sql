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
    -- NULL is a tombstone. A row too large to be sent over the replication protocol would stop the
    -- slot for good; Kafka's own limit is far lower (1 MiB unless raised), and what exceeds only
    -- that becomes a dead letter.
    payload        jsonb       CHECK (pg_column_size(payload) <= 16777216),
    created_at     timestamptz NOT NULL DEFAULT now()
);

-- Only inserts are messages. The publication must exist before the replication slot: what is written
-- in between is passed over.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_publication WHERE pubname = 'postrider') THEN
        CREATE PUBLICATION postrider FOR TABLE outbox WITH (publish = 'insert');
    END IF;
END
$$;
