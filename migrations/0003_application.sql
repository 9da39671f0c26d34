-- What the application's half of the pattern keeps: numbered outbox rows, done requests, done
-- messages, sagas. May be run again, also on what an earlier version of this file made. Each part
-- stands alone: leave out what you do not use.
--
-- CREATE INDEX keeps writers away until it is done. Where a table is large and in use, first build each
-- index that ends in `_by_age` by CREATE INDEX CONCURRENTLY under the same name: here it is then there
-- already.

-- 1. Outbox rows that are numbered within their aggregate. The counter's row is locked until the
--    caller's transaction ends, so numbers rise in the order of commits, without gaps.
ALTER TABLE outbox ADD COLUMN IF NOT EXISTS sequence bigint;

-- By which it is cleaned, oldest first, and by key where one transaction wrote many. Not BRIN: it cannot
-- say which rows are the oldest, and of a table whose free space is used again it soon says nothing.
CREATE INDEX IF NOT EXISTS outbox_by_age ON outbox (created_at, id);
DROP INDEX IF EXISTS outbox_created_at;

CREATE TABLE IF NOT EXISTS outbox_sequences (
    aggregate_type text   NOT NULL,
    aggregate_id   text   NOT NULL,
    last           bigint NOT NULL,
    PRIMARY KEY (aggregate_type, aggregate_id)
);

-- Appends one event in the caller's transaction, and says its number. For every language:
--     SELECT outbox_append('order', '42', 'OrderCreated', '{"total": 990}');
CREATE OR REPLACE FUNCTION outbox_append(
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    payload        jsonb,
    id             uuid DEFAULT gen_random_uuid()
) RETURNS bigint LANGUAGE sql AS $$
    WITH numbered AS (
        INSERT INTO outbox_sequences AS counter VALUES ($1, $2, 1)
        ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET last = counter.last + 1
        RETURNING last
    )
    INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, sequence)
    SELECT $5, $1, $2, $3, $4, last FROM numbered
    RETURNING sequence
$$;

-- 2. Requests that have had their effect: the row is written in the same transaction, so it is the
--    truth, whatever becomes of the cache in front of it.
CREATE TABLE IF NOT EXISTS idempotency_keys (
    -- Tenant and route, so that two clients' keys never meet.
    scope       text        NOT NULL,
    key         text        NOT NULL,
    -- SHA-256 of the request: the same key with another request is a mistake of the client.
    fingerprint bytea       NOT NULL,
    status      smallint    NOT NULL,
    -- An array of [name, value].
    headers     jsonb       NOT NULL,
    body        bytea       NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, key)
);
CREATE INDEX IF NOT EXISTS idempotency_keys_by_age ON idempotency_keys (created_at, scope, key);
DROP INDEX IF EXISTS idempotency_keys_created_at;

-- 3. Messages that have had their effect, for each consumer.
CREATE TABLE IF NOT EXISTS processed_messages (
    consumer     text        NOT NULL,
    message_id   uuid        NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, message_id)
);
CREATE INDEX IF NOT EXISTS processed_messages_by_age
    ON processed_messages (processed_at, consumer, message_id);
DROP INDEX IF EXISTS processed_messages_processed_at;

-- 4. Sagas, and what happened to them.
CREATE TABLE IF NOT EXISTS sagas (
    kind       text        NOT NULL,
    id         text        NOT NULL,
    state      jsonb       NOT NULL,
    status     text        NOT NULL,
    -- When to give up waiting; NULL once it has ended.
    deadline   timestamptz,
    -- How often its deadline has passed.
    put_off    integer     NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT now(),
    -- NULL until it has; by which it is cleaned.
    ended_at   timestamptz,
    PRIMARY KEY (kind, id)
);
-- Where an earlier version made it.
ALTER TABLE sagas ADD COLUMN IF NOT EXISTS put_off integer NOT NULL DEFAULT 0;
ALTER TABLE sagas ADD COLUMN IF NOT EXISTS ended_at timestamptz;
UPDATE sagas SET ended_at = updated_at WHERE deadline IS NULL AND ended_at IS NULL;
CREATE INDEX IF NOT EXISTS sagas_deadline ON sagas (kind, deadline) WHERE deadline IS NOT NULL;
CREATE INDEX IF NOT EXISTS sagas_by_age ON sagas (ended_at, kind, id) WHERE ended_at IS NOT NULL;
DROP INDEX IF EXISTS sagas_ended;

CREATE TABLE IF NOT EXISTS saga_history (
    kind   text        NOT NULL,
    id     text        NOT NULL,
    number integer     NOT NULL,
    event  text        NOT NULL,
    -- After the event.
    status text        NOT NULL,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (kind, id, number)
);
