//! `postrider prune` on real servers: which rows and partitions go, which stay, what is refused, and that plan and
//! deed are the same.

mod ahead;
mod beginning;
mod locks;
mod page;
mod partitions;
mod permissions;
mod refusals;
mod rows;
mod scene;
