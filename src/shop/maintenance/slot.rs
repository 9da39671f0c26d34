//! Checks that the relay's replication slot is usable, because only the slot shows which outbox
//! rows were delivered.
//!
//! A slot of another database or without logical decoding counts as missing, an invalidated one as
//! lost.

use tokio_postgres::Client;

use crate::ShopError;

/// `table` compares each row with the slot's position.
pub(super) async fn check(client: &Client, slot: &str) -> Result<(), ShopError> {
    // `invalidation_reason` exists since PostgreSQL 17.
    let sql = "SELECT wal_status = 'lost', to_jsonb(s)->>'invalidation_reason' \
               FROM pg_catalog.pg_replication_slots AS s \
               WHERE slot_name = $1::text AND database = current_database()";
    let found = client.query_opt(sql, &[&slot]).await?;
    let slot = slot.to_owned();
    let row = found.ok_or_else(|| ShopError::NoSlot(slot.clone()))?;
    let (is_lost, reason): (Option<bool>, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
    if is_lost == Some(true) || reason.is_some() {
        let reason = reason.unwrap_or_else(|| "the log it needs was removed".to_owned());
        return Err(ShopError::SlotLost { slot, reason });
    }
    Ok(())
}
