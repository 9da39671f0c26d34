//! Routing as users meet it: real tables, the real binary, and what then lies in the topics.
//!
//! [`debezium`] replays cases that were observed with Debezium; the other modules are about what only
//! Postrider has. How a routing that cannot work is refused: `refusals::routing`.

mod case;
mod cloudevents;
mod debezium;
mod import;
mod messages;
mod rehearsal;
mod rules;
mod schemas;
