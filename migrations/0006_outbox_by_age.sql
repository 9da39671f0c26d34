-- The index by which `postrider prune` finds the oldest rows of an outbox. `postrider setup` and 0003 make the same one.
-- May be run again.
--
-- CREATE INDEX keeps writers away until it is done. If the table is large and in use, build the index first:
--     CREATE INDEX CONCURRENTLY outbox_by_age ON outbox (created_at, id);
-- A table that is partitioned by day needs it on the default partition only.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_partitioned_table WHERE partrelid = 'outbox'::regclass) THEN
        CREATE INDEX IF NOT EXISTS outbox_by_age ON outbox (created_at, id);
    END IF;
END
$$;
