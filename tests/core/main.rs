//! What decides, without any server: it has no clock and no I/O, so histories, states and inputs can be tried
//! by the thousand.

mod allocation;
mod any_input;
mod exactly_once;
mod routing;
mod session;
