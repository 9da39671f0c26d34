-- The limit on the size of a row, for an outbox that an earlier version of 0001 made; why it is so is
-- said there. May be run again.
--
-- NOT VALID: rows that are there already are not looked at, for they are in the log as they are, so the
-- table is locked for a moment only. New rows are held to it all the same, and VALIDATE CONSTRAINT would
-- add nothing. An outbox with other columns: `postrider setup --table` prints the constraint for it.
DO $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_constraint
        WHERE conrelid = 'outbox'::regclass AND conname = 'outbox_row_size'
    ) THEN
        ALTER TABLE outbox ADD CONSTRAINT outbox_row_size CHECK (
            coalesce(octet_length(aggregate_type), 0)::bigint
            + coalesce(octet_length(aggregate_id), 0)::bigint
            + coalesce(octet_length(event_type), 0)::bigint
            + coalesce(octet_length(payload::text), 0)::bigint <= 16777216
        ) NOT VALID;
    END IF;
END
$$;
-- What stood there before; it measured a value as it is stored, compressed, and the payload alone. Postgres gives
-- the same name to other constraints of the payload, which stay.
DO $$
BEGIN
    IF EXISTS (
        SELECT FROM pg_constraint
        WHERE conrelid = 'outbox'::regclass AND conname = 'outbox_payload_check'
            AND pg_get_constraintdef(oid) = 'CHECK ((pg_column_size(payload) <= 16777216))'
    ) THEN
        ALTER TABLE outbox DROP CONSTRAINT outbox_payload_check;
    END IF;
END
$$;
