//! How others lost rows, ticket by ticket: eleven of Debezium's Postgres connector (which is much
//! used and honestly documented), and those in which clients of the replication protocol acknowledged
//! too much or too little. Each is a test here, by its name; where theirs needs a snapshot, which
//! this relay does not take, ours is the nearest thing it has: the hand-over from "before the slot" to
//! "after the slot".

mod acknowledgements;
mod held;
mod restarts;
mod slots;
