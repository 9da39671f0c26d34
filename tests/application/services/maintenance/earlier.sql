-- Turns today's tables into those of the first version of 0003 and 0004, as far as they differed, with a
-- saga that has ended and one that is open.
DROP INDEX outbox_by_age, idempotency_keys_by_age, processed_messages_by_age, payments_undone_by_age,
    reservations_undone_by_age;
CREATE INDEX outbox_created_at ON outbox USING brin (created_at);
CREATE INDEX idempotency_keys_created_at ON idempotency_keys USING brin (created_at);
CREATE INDEX processed_messages_processed_at ON processed_messages USING brin (processed_at);
DROP TABLE sagas;
CREATE TABLE sagas (
    kind       text        NOT NULL,
    id         text        NOT NULL,
    state      jsonb       NOT NULL,
    status     text        NOT NULL,
    deadline   timestamptz,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, id)
);
CREATE INDEX sagas_deadline ON sagas (kind, deadline) WHERE deadline IS NOT NULL;
INSERT INTO sagas VALUES
    ('order', 'a', '{}', 'CONFIRMED', NULL, now() - interval '60 days'),
    ('order', 'b', '{}', 'PENDING', now(), now() - interval '60 days');
-- A version in between had these.
CREATE INDEX payments_settled ON payments (updated_at)
    WHERE status NOT IN ('PENDING', 'REFUNDING');
CREATE INDEX reservations_updated_at ON reservations (updated_at);
-- A gateway that remembered its keys for ever.
ALTER TABLE payments DROP COLUMN first_attempt_at;
DROP TABLE gateway_operations;
CREATE TABLE gateway_operations (
    key          text        PRIMARY KEY,
    kind         text        NOT NULL CHECK (kind IN ('charge', 'refund')),
    amount_cents bigint      NOT NULL,
    declined     text,
    at           timestamptz NOT NULL DEFAULT now()
);
INSERT INTO gateway_operations VALUES ('charge-7', 'charge', 100, NULL), ('refund-7', 'refund', 100, NULL);
