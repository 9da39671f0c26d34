//! Declares the exit codes, which are stable because scripts and supervisors act on them.
//!
//! Input: a code, or the number that an error of another crate gives. Output: the number for the system,
//! and the meaning that `--help` prints.

/// How the program ends. Numbers from sysexits.h where one fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExitCode {
    /// All went well, a clean drain included.
    Ok = 0,
    /// A check failed, or something went wrong that has no code of its own.
    CheckFailed = 1,
    /// The command line cannot be understood.
    Usage = 2,
    /// Stopped on a row that cannot be delivered, as the policy `stop` demands.
    Poison = 65,
    /// Postgres or Kafka stayed out of reach for the retry budget, or a drain ended unfinished.
    Unavailable = 69,
    /// The position was refused: a gap, another cluster, a restored backup.
    Position = 70,
    /// Another relay holds the slot.
    Held = 75,
    /// Not allowed.
    Permission = 77,
    /// The configuration is wrong, Postgres's or Kafka's own included.
    Config = 78,
}

impl ExitCode {
    /// Every code and its meaning, for `--help`.
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::Ok, "ok, also after a clean drain"),
        (Self::CheckFailed, "a check failed, or an unforeseen error"),
        (Self::Usage, "the command line was not understood"),
        (Self::Poison, "stopped on a row that cannot be delivered (route.rejected = \"stop\")"),
        (
            Self::Unavailable,
            "Postgres or Kafka unavailable after the retry budget, or a drain cut short",
        ),
        (Self::Position, "position refused: gap, other cluster, restored backup"),
        (Self::Held, "the slot is held by another relay (--no-wait)"),
        (Self::Permission, "permission denied"),
        (Self::Config, "configuration error"),
    ];

    /// The number the system sees.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Whether a start would end as this one did until a human has looked. A service manager is told not to start a relay
    /// again that ended so (`RestartPreventExitStatus` of docker/package/postrider.service).
    pub const fn needs_human(self) -> bool {
        matches!(
            self,
            Self::Usage | Self::Poison | Self::Position | Self::Permission | Self::Config
        )
    }

    /// The code of that number, as the crates' errors give it.
    pub fn of_number(number: u8) -> Self {
        let known = Self::ALL.iter().find(|(code, _)| code.number() == number);
        let Some(&(code, _)) = known else { unreachable!("no exit code is {number}") };
        code
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_a_human_is_not_started_again_by_the_unit() {
        let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docker/package/postrider.service");
        let unit = std::fs::read_to_string(unit).unwrap();
        let needs_human = ExitCode::ALL.iter().filter(|(code, _)| code.needs_human());
        let numbers: Vec<String> = needs_human.map(|(code, _)| code.number().to_string()).collect();
        let line = format!("\nRestartPreventExitStatus={}\n", numbers.join(" "));
        assert!(unit.contains(&line), "{line}");
    }

    #[test]
    fn numbers_are_the_documented_ones() {
        let numbers: Vec<u8> = ExitCode::ALL.iter().map(|(code, _)| code.number()).collect();
        assert!(ExitCode::ALL.iter().all(|&(c, _)| ExitCode::of_number(c.number()) == c));
        assert_eq!(numbers, [0, 1, 2, 65, 69, 70, 75, 77, 78]);
    }
}
