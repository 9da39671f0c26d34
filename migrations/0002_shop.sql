-- The sample application's own table. May be run again.

CREATE TABLE IF NOT EXISTS orders (
    id           uuid        PRIMARY KEY,
    customer     text        NOT NULL,
    amount_cents bigint      NOT NULL CHECK (amount_cents > 0),
    status       text        NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now()
);
