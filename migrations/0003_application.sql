-- The tables and functions of the application's half: numbered outbox rows, requests and messages that have had
-- their effect, sagas. May be run again, also on what an earlier version of this file made. Each part
-- stands alone: leave out what you do not use.
--
-- CREATE INDEX keeps writers away until it is done. Where a table is large and in use, first build each
-- index that ends in `_by_age` by CREATE INDEX CONCURRENTLY under the same name: here it is then there
-- already.

-- 1. Outbox rows that are numbered within their aggregate. The counter's row is locked until the
--    caller's transaction ends, so numbers rise in the order of commits, without gaps.
ALTER TABLE outbox ADD COLUMN IF NOT EXISTS sequence bigint;

-- The trace that the event belongs to, of W3C Trace Context: 55 bytes in its version 00. The relay sends it
-- as the header of the same name.
ALTER TABLE outbox ADD COLUMN IF NOT EXISTS traceparent varchar(256);

-- By which it is cleaned, oldest first, and by key where one transaction wrote many. Not BRIN: it cannot
-- say which rows are the oldest, and of a table whose free space is used again it soon says nothing.
CREATE INDEX IF NOT EXISTS outbox_by_age ON outbox (created_at, id);
DO $$
BEGIN
    -- An earlier version's; an index of yours that has its name stays.
    IF EXISTS (
        SELECT FROM pg_index
        WHERE indexrelid = to_regclass('outbox_created_at') AND pg_get_indexdef(indexrelid) LIKE '% USING brin (created_at)'
    ) THEN
        DROP INDEX outbox_created_at;
    END IF;
END
$$;

CREATE TABLE IF NOT EXISTS outbox_sequences (
    aggregate_type text   NOT NULL,
    aggregate_id   text   NOT NULL,
    last           bigint NOT NULL,
    PRIMARY KEY (aggregate_type, aggregate_id)
);

-- The functions of this part that exist already, and the roles that may call them: section 5 gives new functions
-- the same grants.
DO $$
BEGIN
    PERFORM set_config('postrider.outbox', (
        SELECT jsonb_agg(jsonb_build_object('function', function.oid, 'grantee', grantee))::text
        FROM pg_proc AS function
        LEFT JOIN LATERAL aclexplode(coalesce(proacl, acldefault('f', proowner))) ON true
        WHERE pronamespace = format('%I', current_schema())::regnamespace
            AND proname IN ('outbox_append', 'outbox_append_all', 'outbox_tombstone')
    ), false);
END
$$;

-- Appends one event in the caller's transaction and returns its number. For every language:
--     SELECT outbox_append('order', '42', 'OrderCreated', '{"total": 990}');
--     SELECT outbox_append('order', '42', 'OrderCreated', '{"total": 990}', traceparent => '00-4bf9..-01');
-- A payload that is NULL is an error: a program that lost a value would otherwise delete a key from a compacted
-- topic. An event without a payload is outbox_tombstone. The JSON value null is a payload like any other.
--
-- An earlier version had no traceparent. Beside it the new one would be ambiguous, so it goes in the same
-- statement: no writer finds neither.
DO $migration$
BEGIN
    DROP FUNCTION IF EXISTS outbox_append(text, text, text, jsonb, uuid);
    CREATE OR REPLACE FUNCTION outbox_append(
        aggregate_type text,
        aggregate_id   text,
        event_type     text,
        payload        jsonb,
        id             uuid DEFAULT gen_random_uuid(),
        traceparent    text DEFAULT NULL
    ) RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
    #variable_conflict use_column
    DECLARE
        number bigint;
        fault  text := CASE
            WHEN $1 = '' OR $1 ~ '[[:cntrl:]]' THEN 'aggregate_type is empty or has a control character'
            WHEN $2 = '' THEN 'aggregate_id is empty'
            WHEN $3 = '' OR $3 ~ '[[:cntrl:]]' THEN 'event_type is empty or has a control character'
            WHEN $6 ~ '[^!-~]' THEN 'traceparent has a character other than visible ASCII'
        END;
    BEGIN
        IF fault IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'outbox_append: ' || fault;
        ELSIF $4 IS NULL THEN
            RAISE EXCEPTION USING
                ERRCODE = 'null_value_not_allowed',
                MESSAGE = 'outbox_append: payload is NULL',
                HINT = 'call outbox_tombstone for an event that deletes its key from a compacted topic';
        END IF;
        INSERT INTO outbox_sequences AS counter VALUES ($1, $2, 1)
        ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET last = counter.last + 1
        RETURNING last INTO number;
        INSERT INTO outbox
            (id, aggregate_type, aggregate_id, event_type, payload, sequence, traceparent)
        VALUES ($5, $1, $2, $3, $4, number, $6);
        RETURN number;
    END
    $$;
END
$migration$;

-- Appends several events, in the order of the arrays, and returns their numbers in that order. The counters
-- are locked in one order whatever that of the events is, so two callers do not deadlock.
--     SELECT * FROM outbox_append_all(
--         ARRAY['order', 'order'], ARRAY['42', '42'], ARRAY['OrderCreated', 'OrderPaid'],
--         ARRAY['{"total": 990}', '{}']::jsonb[], ARRAY[gen_random_uuid(), gen_random_uuid()]);
-- With tombstones, each of the seven arrays is passed; traceparents and tombstones may be NULL. An event for which
-- `tombstones` is true has NULL for its payload; no other event may have it.
--
-- An earlier version makes the form without tombstones alone. No parameter of the other form has a default, so a
-- call fits one of them only, whichever version was the last to run this.
CREATE OR REPLACE FUNCTION outbox_append_all(
    aggregate_types text[],
    aggregate_ids   text[],
    event_types     text[],
    payloads        jsonb[],
    ids             uuid[],
    traceparents    text[],
    tombstones      boolean[]
) RETURNS SETOF bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    fault text;
BEGIN
    -- NULL is equal to NULL here: without this, calls without any array would append nothing.
    IF $1 IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = 'outbox_append_all: aggregate_types is NULL',
            HINT = 'pass empty arrays to append no events';
    -- What an array lacks would be NULL.
    ELSIF cardinality($2) IS DISTINCT FROM cardinality($1)
        OR cardinality($3) IS DISTINCT FROM cardinality($1)
        OR cardinality($4) IS DISTINCT FROM cardinality($1)
        OR cardinality($5) IS DISTINCT FROM cardinality($1)
        OR $6 IS NOT NULL AND cardinality($6) IS DISTINCT FROM cardinality($1)
        OR $7 IS NOT NULL AND cardinality($7) IS DISTINCT FROM cardinality($1)
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'array_subscript_error',
            MESSAGE = 'outbox_append_all: the arrays have different lengths';
    END IF;
    SELECT 'event ' || place || ': ' || what INTO fault
    FROM unnest($1, $2, $3, $4, $6, $7) WITH ORDINALITY
            AS event (kind, key, event_type, payload, traceparent, is_tombstone, place),
        LATERAL (SELECT CASE
            WHEN kind = '' OR kind ~ '[[:cntrl:]]' THEN 'aggregate_type is empty or has a control character'
            WHEN key = '' THEN 'aggregate_id is empty'
            WHEN event_type = '' OR event_type ~ '[[:cntrl:]]' THEN 'event_type is empty or has a control character'
            WHEN traceparent ~ '[^!-~]' THEN 'traceparent has a character other than visible ASCII'
            WHEN is_tombstone AND payload IS NOT NULL THEN 'a tombstone has a payload'
            WHEN is_tombstone IS NOT TRUE AND payload IS NULL THEN 'payload is NULL, and tombstones is not true'
        END) AS fault (what)
    WHERE what IS NOT NULL ORDER BY place LIMIT 1;
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'outbox_append_all: ' || fault;
    END IF;
    RETURN QUERY
    WITH events AS (
        SELECT *, row_number() OVER (PARTITION BY kind, key ORDER BY place) AS number
        FROM unnest($1, $2, $3, $4, $5, $6) WITH ORDINALITY
            AS event (kind, key, event_type, payload, id, traceparent, place)
    ), counts AS (
        SELECT kind, key, count(*) AS count FROM events GROUP BY kind, key
    ), counted AS (
        INSERT INTO outbox_sequences AS counter (aggregate_type, aggregate_id, last)
        SELECT kind, key, count FROM counts ORDER BY kind, key
        ON CONFLICT (aggregate_type, aggregate_id)
            DO UPDATE SET last = counter.last + excluded.last
        RETURNING aggregate_type, aggregate_id, last
    ), numbered AS (
        SELECT events.*, counted.last - counts.count + events.number AS sequence
        FROM events
        JOIN counts USING (kind, key)
        JOIN counted ON counted.aggregate_type = kind AND counted.aggregate_id = key
    ), appended AS (
        INSERT INTO outbox
            (id, aggregate_type, aggregate_id, event_type, payload, sequence, traceparent)
        SELECT id, kind, key, event_type, payload, sequence, traceparent
        FROM numbered ORDER BY place
    )
    SELECT sequence FROM numbered ORDER BY place;
END
$$;
CREATE OR REPLACE FUNCTION outbox_append_all(
    aggregate_types text[],
    aggregate_ids   text[],
    event_types     text[],
    payloads        jsonb[],
    ids             uuid[],
    traceparents    text[] DEFAULT NULL
) RETURNS SETOF bigint LANGUAGE sql SET search_path FROM CURRENT AS $$
    SELECT outbox_append_all($1, $2, $3, $4, $5, $6, NULL)
$$;

-- Appends an event without a payload and returns its number. Its record has a null value, which deletes what a
-- compacted topic has of the key.
--     SELECT outbox_tombstone('order', '42', 'OrderCreated');
CREATE OR REPLACE FUNCTION outbox_tombstone(
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    id             uuid DEFAULT gen_random_uuid(),
    traceparent    text DEFAULT NULL
) RETURNS bigint LANGUAGE sql SET search_path FROM CURRENT AS $$
    SELECT outbox_append_all(
        ARRAY[$1], ARRAY[$2], ARRAY[$3], ARRAY[NULL]::jsonb[], ARRAY[$4], ARRAY[$5], ARRAY[true]
    )
$$;

-- The same for aggregates whose ids are integers or UUIDs: the key is the id's text. A literal in quotes is text.
DO $migration$
DECLARE
    id_type text;
BEGIN
    FOREACH id_type IN ARRAY ARRAY['bigint', 'uuid'] LOOP
        EXECUTE format($function$
            CREATE OR REPLACE FUNCTION outbox_append(
                aggregate_type text,
                aggregate_id   %1$s,
                event_type     text,
                payload        jsonb,
                id             uuid DEFAULT gen_random_uuid(),
                traceparent    text DEFAULT NULL
            ) RETURNS bigint LANGUAGE sql SET search_path FROM CURRENT
            AS 'SELECT outbox_append($1, $2::text, $3, $4, $5, $6)';
            CREATE OR REPLACE FUNCTION outbox_tombstone(
                aggregate_type text,
                aggregate_id   %1$s,
                event_type     text,
                id             uuid DEFAULT gen_random_uuid(),
                traceparent    text DEFAULT NULL
            ) RETURNS bigint LANGUAGE sql SET search_path FROM CURRENT
            AS 'SELECT outbox_tombstone($1, $2::text, $3, $4, $5)';
        $function$, id_type);
    END LOOP;
END
$migration$;

-- 2. Requests that have had their effect: the row is written in the same transaction, so it is the
--    truth, whatever becomes of the cache in front of it.
CREATE TABLE IF NOT EXISTS idempotency_keys (
    -- Whose key it is, a tenant or an account: two callers' keys never meet.
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
DO $$
BEGIN
    -- An earlier version's; an index of yours that has its name stays.
    IF EXISTS (
        SELECT FROM pg_index
        WHERE indexrelid = to_regclass('idempotency_keys_created_at') AND pg_get_indexdef(indexrelid) LIKE '% USING brin (created_at)'
    ) THEN
        DROP INDEX idempotency_keys_created_at;
    END IF;
END
$$;

-- The functions of this part that exist already, and the roles that may call them: section 5 gives new functions
-- the same grants.
DO $$
BEGIN
    PERFORM set_config('postrider.idempotency', (
        SELECT jsonb_agg(jsonb_build_object('function', function.oid, 'grantee', grantee))::text
        FROM pg_proc AS function
        LEFT JOIN LATERAL aclexplode(coalesce(proacl, acldefault('f', proowner))) ON true
        WHERE pronamespace = format('%I', current_schema())::regnamespace
            AND proname IN ('idempotency_begin', 'idempotency_finish', 'idempotency_claim')
    ), false);
END
$$;

-- A request, in the order of its use and in every language:
--     BEGIN;
--     SELECT * FROM idempotency_begin(scope, key, fingerprint, wait_max => '5 s');
--     -- `outcome` won: have the effect, then
--     SELECT idempotency_finish(scope, key, 201, '[["location", "/orders/7"]]', '{"id": 7}');
--     COMMIT;
--     -- done: ROLLBACK, and send the stored response. mismatch, a key of another request: ROLLBACK, and refuse.
--
-- A call waits while another transaction has the key, without wait_max for as long as the session's lock_timeout
-- lets it. With wait_max it waits no longer than that (55P03; 0 sets no limit), and the server ends the session if
-- the transaction is then idle for 30 s: a frozen program keeps its key no longer. A limit of the session's own for
-- idle transactions stays, and so does a shorter lock_timeout.
CREATE OR REPLACE FUNCTION idempotency_begin(
    scope       text,
    key         text,
    fingerprint bytea,
    wait_max    interval DEFAULT NULL,
    OUT outcome        text,
    OUT stored_status  integer,
    OUT stored_headers jsonb,
    OUT stored_body    text
) LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    stored  idempotency_keys;
    session text := current_setting('lock_timeout');
BEGIN
    IF scope = '' OR key = '' OR fingerprint = '' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'idempotency_begin: scope, key or fingerprint is empty';
    END IF;
    IF wait_max IS NOT NULL THEN
        IF wait_max > '0 s' AND NOT session::interval BETWEEN '1 us' AND wait_max THEN
            PERFORM set_config('lock_timeout', greatest(1, ceil(extract(epoch FROM wait_max) * 1000)) || 'ms', true);
        END IF;
        IF current_setting('idle_in_transaction_session_timeout') = '0' THEN
            PERFORM set_config('idle_in_transaction_session_timeout', '30s', true);
        END IF;
    END IF;
    -- The row may be deleted between the INSERT that conflicts with it and the SELECT that reads it.
    FOR attempt IN 1..3 LOOP
        -- No response has status 0: the row is not one that can be sent until it is finished.
        INSERT INTO idempotency_keys (scope, key, fingerprint, status, headers, body)
        VALUES ($1, $2, $3, 0, '[]', '') ON CONFLICT (scope, key) DO NOTHING;
        IF FOUND THEN
            outcome := 'won';
            EXIT;
        END IF;
        SELECT * INTO stored FROM idempotency_keys AS it WHERE it.scope = $1 AND it.key = $2;
        IF FOUND AND stored.fingerprint <> $3 THEN
            outcome := 'mismatch';
            EXIT;
        ELSIF FOUND AND stored.status = 0 THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = 'the key has no response: its transaction was committed without idempotency_finish',
                HINT = 'call idempotency_begin and idempotency_finish in one transaction; delete the row to free the key';
        ELSIF FOUND THEN
            outcome := 'done';
            stored_status := stored.status;
            stored_headers := stored.headers;
            BEGIN
                stored_body := convert_from(stored.body, 'UTF8');
            EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
                RAISE EXCEPTION USING
                    ERRCODE = SQLSTATE,
                    MESSAGE = 'idempotency_begin: the stored body is not text in the encoding of the database',
                    HINT = 'read it as bytes: call idempotency_claim with body::bytea';
            END;
            EXIT;
        END IF;
    END LOOP;
    IF outcome IS NULL THEN
        RAISE 'rows of idempotency_keys are deleted while they are in use'
            USING HINT = 'delete only keys older than clients retry: two days';
    END IF;
    -- The effect may wait as long as the session lets it.
    PERFORM set_config('lock_timeout', session, true);
END
$$;

-- Stores the response of a request that idempotency_begin has let through, in the same transaction.
CREATE OR REPLACE FUNCTION idempotency_finish(
    scope   text,
    key     text,
    status  integer,
    headers jsonb,
    body    text
) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
    IF status BETWEEN 200 AND 599 IS NOT TRUE THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'idempotency_finish: status is not from 200 to 599';
    ELSIF jsonb_typeof(headers) IS DISTINCT FROM 'array' OR jsonb_path_exists(headers, 'strict $[*] ? (!(
        @.type() == "array" && @.size() == 2 && @[0].type() == "string" && @[1].type() == "string"
        && @[0] like_regex "^[-!#$%&''*+.^_`|~0-9A-Za-z]+$" && @[1] like_regex "^[\t -~]*$"))')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'idempotency_finish: headers is not an array of [name, value] that HTTP allows',
            HINT = 'a value is text of visible ASCII, blanks and tabs; without headers pass []';
    END IF;
    UPDATE idempotency_keys AS it SET status = $3, headers = $4, body = convert_to($5, 'UTF8')
    WHERE it.scope = $1 AND it.key = $2 AND it.status = 0;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'idempotency_finish: idempotency_begin has not won this key in this transaction';
    END IF;
END
$$;

-- Both in one call, for a response that is known before the effect. `outcome` is that of idempotency_begin.
-- Waits while another transaction has the key. `SELECT * FROM idempotency_claim(..)`.
--
-- The body is text or bytea, and comes back as the same. A literal is text, and so is a parameter whose type the
-- driver leaves to the server. As bytea, a literal is read in the escape format of bytea, which takes a backslash
-- for the beginning of an escape: "C:\temp" is stored as other bytes.
CREATE OR REPLACE FUNCTION idempotency_claim(
    scope       text,
    key         text,
    fingerprint bytea,
    status      integer,
    headers     jsonb,
    body        bytea,
    OUT outcome        text,
    OUT stored_status  integer,
    OUT stored_headers jsonb,
    OUT stored_body    bytea
) LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    stored idempotency_keys;
BEGIN
    IF scope = '' OR key = '' OR fingerprint = '' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'idempotency_claim: scope, key or fingerprint is empty';
    ELSIF status BETWEEN 200 AND 599 IS NOT TRUE THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'idempotency_claim: status is not from 200 to 599';
    ELSIF jsonb_typeof(headers) IS DISTINCT FROM 'array' OR jsonb_path_exists(headers, 'strict $[*] ? (!(
        @.type() == "array" && @.size() == 2 && @[0].type() == "string" && @[1].type() == "string"
        && @[0] like_regex "^[-!#$%&''*+.^_`|~0-9A-Za-z]+$" && @[1] like_regex "^[\t -~]*$"))')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'idempotency_claim: headers is not an array of [name, value] that HTTP allows',
            HINT = 'a value is text of visible ASCII, blanks and tabs; without headers pass []';
    END IF;
    -- The row may be deleted between the INSERT that conflicts with it and the SELECT that reads it.
    FOR attempt IN 1..3 LOOP
        INSERT INTO idempotency_keys (scope, key, fingerprint, status, headers, body)
        VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (scope, key) DO NOTHING;
        IF FOUND THEN
            outcome := 'won';
            RETURN;
        END IF;
        SELECT * INTO stored FROM idempotency_keys AS it WHERE it.scope = $1 AND it.key = $2;
        IF FOUND AND stored.fingerprint <> $3 THEN
            outcome := 'mismatch';
            RETURN;
        ELSIF FOUND AND stored.status = 0 THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = 'the key has no response: its transaction was committed without idempotency_finish',
                HINT = 'call idempotency_begin and idempotency_finish in one transaction; delete the row to free the key';
        ELSIF FOUND THEN
            outcome := 'done';
            stored_status := stored.status;
            stored_headers := stored.headers;
            stored_body := stored.body;
            RETURN;
        END IF;
    END LOOP;
    RAISE 'rows of idempotency_keys are deleted while they are in use'
        USING HINT = 'delete only keys older than clients retry: two days';
END
$$;
CREATE OR REPLACE FUNCTION idempotency_claim(
    scope       text,
    key         text,
    fingerprint bytea,
    status      integer,
    headers     jsonb,
    body        text,
    OUT outcome        text,
    OUT stored_status  integer,
    OUT stored_headers jsonb,
    OUT stored_body    text
) LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    stored bytea;
BEGIN
    SELECT * INTO outcome, stored_status, stored_headers, stored
    FROM idempotency_claim($1, $2, $3, $4, $5, convert_to($6, 'UTF8'));
    BEGIN
        stored_body := convert_from(stored, 'UTF8');
    EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
        RAISE EXCEPTION USING
            ERRCODE = SQLSTATE,
            MESSAGE = 'idempotency_claim: the stored body is not text in the encoding of the database',
            HINT = 'read it as bytes: call idempotency_claim with body::bytea';
    END;
END
$$;

-- 3. Messages that have had their effect, for each consumer.
CREATE TABLE IF NOT EXISTS processed_messages (
    consumer     text        NOT NULL,
    message_id   uuid        NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, message_id)
);
CREATE INDEX IF NOT EXISTS processed_messages_by_age
    ON processed_messages (processed_at, consumer, message_id);
DO $$
BEGIN
    -- An earlier version's; an index of yours that has its name stays.
    IF EXISTS (
        SELECT FROM pg_index
        WHERE indexrelid = to_regclass('processed_messages_processed_at') AND pg_get_indexdef(indexrelid) LIKE '% USING brin (processed_at)'
    ) THEN
        DROP INDEX processed_messages_processed_at;
    END IF;
END
$$;

-- Marks a message as processed in the transaction of its effects, in every language. True: it is the first
-- time, so have the effects, and commit. False: they were committed before. Waits while another transaction
-- has the same message.
CREATE OR REPLACE FUNCTION inbox_mark(consumer text, message_id uuid) RETURNS boolean
LANGUAGE sql SET search_path FROM CURRENT AS $$
    WITH marked AS (
        INSERT INTO processed_messages (consumer, message_id) VALUES ($1, $2)
        ON CONFLICT DO NOTHING RETURNING 1
    )
    SELECT EXISTS (SELECT FROM marked)
$$;

-- How far each consumer is in each partition, written in the transaction of its effects. A database that
-- goes back, restored or failed over, so says from where messages must be read again: below next_offset,
-- every one is handled in this database. Rows are updated often; free space keeps that within a page.
CREATE TABLE IF NOT EXISTS consumer_offsets (
    consumer    text        NOT NULL,
    topic       text        NOT NULL,
    partition   integer     NOT NULL,
    next_offset bigint      NOT NULL CHECK (next_offset >= 0),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, topic, partition)
) WITH (fillfactor = 50);

-- The last number of each aggregate that a consumer has handled, where it enforces their order: written in the
-- transaction of its effects. A row may be deleted with its aggregate; without it the aggregate begins anew.
CREATE TABLE IF NOT EXISTS consumer_sequences (
    consumer       text        NOT NULL,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    last           bigint      NOT NULL,
    updated_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, aggregate_type, aggregate_id)
) WITH (fillfactor = 80);

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
DO $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_attribute
        WHERE attrelid = 'sagas'::regclass AND attname = 'ended_at' AND NOT attisdropped
    ) THEN
        ALTER TABLE sagas ADD COLUMN ended_at timestamptz;
        UPDATE sagas SET ended_at = updated_at WHERE deadline IS NULL;
    END IF;
END
$$;
CREATE INDEX IF NOT EXISTS sagas_deadline ON sagas (kind, deadline) WHERE deadline IS NOT NULL;
CREATE INDEX IF NOT EXISTS sagas_by_age ON sagas (ended_at, kind, id) WHERE ended_at IS NOT NULL;

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
-- The id of the message that the event came with; NULL for the clock, an operator, and the start.
ALTER TABLE saga_history ADD COLUMN IF NOT EXISTS cause uuid;

-- Timers that a saga has set; a row is deleted when its timer fires or is cancelled.
CREATE TABLE IF NOT EXISTS saga_timers (
    kind  text        NOT NULL,
    id    text        NOT NULL,
    name  text        NOT NULL,
    due   timestamptz NOT NULL,
    -- How often a process took it to fire it; above 1 where that failed.
    tries integer     NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, id, name)
);
CREATE INDEX IF NOT EXISTS saga_timers_due ON saga_timers (kind, due);

-- 5. The functions find their tables where this file has made them, whoever calls them: not in a schema that is
-- named like the caller, and not among temporary tables. The roles that may call an earlier function of a part may
-- call its new ones.
DO $$
DECLARE
    path text := (
        SELECT string_agg(format('%I', schema), ', ' ORDER BY place) || ', pg_temp'
        FROM unnest(current_schemas(false)) WITH ORDINALITY AS it (schema, place)
    );
    function regprocedure;
    part text;
    earlier jsonb;
    grantee text;
BEGIN
    FOR function, part IN
        SELECT oid, split_part(proname, '_', 1) FROM pg_proc
        WHERE pronamespace = format('%I', current_schema())::regnamespace
            AND proname IN (
                'outbox_append', 'outbox_append_all', 'outbox_tombstone', 'idempotency_begin', 'idempotency_finish',
                'idempotency_claim', 'inbox_mark'
            )
            -- Each piece may be another role's.
            AND pg_has_role(proowner, 'USAGE')
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %s', function, path);
        -- Without earlier functions, the grants stay those that the server gives by default.
        earlier := nullif(current_setting('postrider.' || part, true), '');
        CONTINUE WHEN earlier IS NULL
            OR earlier @> jsonb_build_array(jsonb_build_object('function', function::oid));
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', function);
        FOR grantee IN
            SELECT DISTINCT CASE id WHEN 0 THEN 'PUBLIC' ELSE id::regrole::text END
            FROM jsonb_array_elements(earlier) AS it, CAST(it ->> 'grantee' AS oid) AS id
            WHERE id IS NOT NULL
        LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', function, grantee);
        END LOOP;
    END LOOP;
    PERFORM set_config('postrider.outbox', '', false), set_config('postrider.idempotency', '', false);
END
$$;
