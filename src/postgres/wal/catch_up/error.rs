//! Why a backlog is not read in windows any more. The stream brings the rest: it is slower, and needs nothing of this.

use crate::wal::error::ServerMessage;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatchUpError {
    /// The server says no to a copy of the slot, or to a window.
    #[error("the backlog cannot be read in windows: {0}")]
    Refused(Box<ServerMessage>),
    /// The server ends the connection, for itself or for whoever asked it to.
    #[error("the server ended the connection for windows of the backlog: {0}")]
    Ended(Box<ServerMessage>),
    /// Only a stream waits for the standbys that are to have a row before it is sent (`synchronized_standby_slots`).
    #[error("standbys are waited for, which windows do not: streaming the backlog")]
    StandbysAwaited,
    /// Windows would come from one server, and acknowledgements go to another.
    #[error("the connection for windows of the backlog reached another server than the stream")]
    OtherServer,
    /// What a window would have the server decode in vain.
    #[error(
        "a transaction has been open for long, or the server writes much: streaming the rest of the backlog"
    )]
    Far,
    /// So little of it is on disk yet, or may be read before the server gives up the slot.
    #[error("too little of the backlog can be read in windows: streaming it")]
    Short,
    /// A window has not been read to its end for too long, and the server cannot clean up its tables meanwhile.
    #[error("a window of the backlog was open for {seconds} s")]
    Slow {
        /// So long.
        seconds: u64,
    },
}

impl CatchUpError {
    /// What to do, where there is something.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Refused(server) if server.routine == "ReplicationSlotCreate" => Some(
                "the backlog is streamed, which takes longer; raise max_replication_slots by one, for the temporary slot \
                 that a relay uses while it catches up"
                    .to_owned(),
            ),
            Self::Refused(_) => Some(
                "the backlog is streamed, which takes longer; set source.catch_up = false to have it so always"
                    .to_owned(),
            ),
            Self::Slow { .. } => Some(
                "the brokers take rows slowly or not at all; the rest of the backlog is streamed, which holds up no VACUUM"
                    .to_owned(),
            ),
            Self::OtherServer => Some(
                "a proxy sends each connection to another server: name the servers themselves in source.url, with \
                 target_session_attrs=primary"
                    .to_owned(),
            ),
            Self::Ended(_) | Self::StandbysAwaited | Self::Far | Self::Short => None,
        }
    }
}
