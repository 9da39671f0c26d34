-- What the reference services keep, beside `orders` of 0002. May be run again. Each service reads and
-- writes its own tables alone, and hears of the others through Kafka, so each may have a database of its
-- own: `shop migrate` takes the part of one service. As a whole this is for one database for all of them.

-- The order service.
ALTER TABLE orders ADD COLUMN IF NOT EXISTS sku text;
ALTER TABLE orders ADD COLUMN IF NOT EXISTS quantity integer CHECK (quantity > 0);

-- The payment service. A row is the intent to charge, written before the gateway is called.
CREATE TABLE IF NOT EXISTS payments (
    order_id        uuid        PRIMARY KEY,
    -- Handed on to whoever comes after the payment.
    order_placed    jsonb       NOT NULL,
    amount_cents    bigint      NOT NULL CHECK (amount_cents >= 0),
    status          text        NOT NULL CHECK (status IN
        ('PENDING', 'CHARGED', 'DECLINED', 'REFUNDING', 'REFUNDED', 'VOIDED')),
    -- The order was given up while the charge was under way: refund it when it succeeds.
    undo            boolean     NOT NULL DEFAULT false,
    reason          text,
    attempts        integer     NOT NULL DEFAULT 0,
    -- When the gateway may be called (again); whoever calls it puts this off first.
    next_attempt_at timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now()
);
-- When the gateway was first sent this charge's or this refund's key; NULL before. A gateway forgets keys
-- after a day or so, and a call that is repeated later is another charge.
ALTER TABLE payments ADD COLUMN IF NOT EXISTS first_attempt_at timestamptz;
CREATE INDEX IF NOT EXISTS payments_open ON payments (next_attempt_at)
    WHERE status IN ('PENDING', 'REFUNDING');
-- A charge that stands is kept, like the order; what was undone or never taken is cleaned up.
CREATE INDEX IF NOT EXISTS payments_undone_by_age ON payments (updated_at, order_id)
    WHERE status IN ('DECLINED', 'REFUNDED', 'VOIDED');
DROP INDEX IF EXISTS payments_settled;
DROP INDEX IF EXISTS payments_by_age;

-- The simulated gateway's own books; the payment service knows them through its calls only.
CREATE TABLE IF NOT EXISTS gateway_operations (
    -- The caller's idempotency key.
    key          text        NOT NULL,
    kind         text        NOT NULL CHECK (kind IN ('charge', 'refund')),
    amount_cents bigint      NOT NULL,
    -- NULL: approved.
    declined     text,
    at           timestamptz NOT NULL DEFAULT now()
);
-- What the caller calls the payment in its own books.
ALTER TABLE gateway_operations ADD COLUMN IF NOT EXISTS reference text;
-- When the gateway forgot the key: a call with it is then a new operation.
ALTER TABLE gateway_operations ADD COLUMN IF NOT EXISTS key_forgotten_at timestamptz;
UPDATE gateway_operations SET reference = regexp_replace(key, '^(charge|refund)-', '')
    WHERE reference IS NULL;
CREATE UNIQUE INDEX IF NOT EXISTS gateway_operations_key
    ON gateway_operations (key, key_forgotten_at) NULLS NOT DISTINCT;
CREATE INDEX IF NOT EXISTS gateway_operations_reference ON gateway_operations (reference, kind);
-- An earlier version remembered keys for ever.
ALTER TABLE gateway_operations DROP CONSTRAINT IF EXISTS gateway_operations_pkey;

-- The inventory service.
CREATE TABLE IF NOT EXISTS stock (
    sku       text   PRIMARY KEY,
    available bigint NOT NULL CHECK (available >= 0)
);

CREATE TABLE IF NOT EXISTS reservations (
    order_id   uuid        PRIMARY KEY,
    sku        text        NOT NULL,
    quantity   integer     NOT NULL CHECK (quantity >= 0),
    status     text        NOT NULL CHECK (status IN ('RESERVED', 'UNAVAILABLE', 'RELEASED')),
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS reservations_undone_by_age ON reservations (updated_at, order_id)
    WHERE status IN ('UNAVAILABLE', 'RELEASED');
DROP INDEX IF EXISTS reservations_updated_at;
DROP INDEX IF EXISTS reservations_by_age;

-- The notification service. A row is the intent to mail a customer about the end of an order.
CREATE TABLE IF NOT EXISTS notifications (
    order_id        uuid        PRIMARY KEY,
    -- From OrderCreated; NULL before that is heard of.
    customer        text,
    -- The event to tell of; NULL before. Its id is the mail's Message-ID.
    event_id        uuid,
    event_type      text,
    -- WAITING until both are known.
    status          text        NOT NULL CHECK (status IN
        ('WAITING', 'PENDING', 'SENT', 'REFUSED', 'UNADDRESSED')),
    -- The server's reply code, where it refused the recipient or the mail.
    reply_code      smallint,
    attempts        integer     NOT NULL DEFAULT 0,
    -- When it may be sent (again); whoever sends it puts this off first.
    next_attempt_at timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS notifications_open ON notifications (next_attempt_at)
    WHERE status = 'PENDING';
CREATE INDEX IF NOT EXISTS notifications_by_age ON notifications (updated_at, order_id)
    WHERE status NOT IN ('WAITING', 'PENDING');
