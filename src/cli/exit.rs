//! Declares the exit codes, which scripts and supervisors depend on.

/// Exit code of the program, from sysexits.h if one fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExitCode {
    Ok = 0,
    CheckFailed = 1,
    Usage = 2,
    /// A row cannot be delivered, and the policy is `stop`.
    Poison = 65,
    /// Postgres or Kafka unreachable for the retry budget, or an incomplete drain.
    Unavailable = 69,
    /// Position refused: a gap, another cluster, a restored backup.
    Position = 70,
    Held = 75,
    Permission = 77,
    /// Wrong configuration, also of Postgres or Kafka.
    Config = 78,
}

impl ExitCode {
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::Ok, "ok, also after a clean drain"),
        (Self::CheckFailed, "a check failed, or an unforeseen error"),
        (Self::Usage, "invalid command line"),
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

    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Whether a restart would fail again until a person acts (`RestartPreventExitStatus` of
    /// docker/package/postrider.service).
    pub const fn needs_human(self) -> bool {
        matches!(
            self,
            Self::Usage | Self::Poison | Self::Position | Self::Permission | Self::Config
        )
    }

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
