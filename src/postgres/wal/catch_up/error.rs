//! Why a backlog is no longer read in windows. The stream delivers the rest: it is slower and has
//! no such requirements.

use crate::wal::error::ServerMessage;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatchUpError {
    #[error("the backlog cannot be read in windows: {0}")]
    Refused(Box<ServerMessage>),
    /// The server ends the connection, on its own or on request.
    #[error("the server ended the connection for windows of the backlog: {0}")]
    Ended(Box<ServerMessage>),
    /// Standbys must receive rows first (`synchronized_standby_slots`); only a stream waits for
    /// them.
    #[error("standbys are waited for, which windows do not: streaming the backlog")]
    StandbysAwaited,
    /// Windows would come from one server, and acknowledgements go to another.
    #[error("the connection for windows of the backlog reached another server than the stream")]
    OtherServer,
    /// The server would decode too much per window in vain.
    #[error(
        "a transaction has been open for long, or the server writes much: streaming the rest of the backlog"
    )]
    Far,
    /// Too little of the backlog is on disk, or safe from the slot's invalidation.
    #[error("too little of the backlog can be read in windows: streaming it")]
    Short,
    /// A window stays unread for too long, which blocks the server's VACUUM.
    #[error("a window of the backlog was open for {seconds} s")]
    Slow { seconds: u64 },
}

impl CatchUpError {
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
