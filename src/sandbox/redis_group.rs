//! Temporary groups of Redis servers for tests of failover: a Redis Cluster of six, and a master
//! with a replica under three Sentinels. After the start, each master has a replica that may
//! replace it.

use std::time::{Duration, Instant};

use super::SandboxError;
use super::password::RandomPassword;
use super::redis::{Kind, MASTER_NAME, Redis, Role};

const LIMIT: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(50);

/// Three masters, each with a replica.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
    password: RandomPassword,
}

impl RedisCluster {
    /// A node counts as dead after `node_timeout` without a sign; Redis's default is 15 s.
    pub fn start(node_timeout: Duration) -> Result<Self, SandboxError> {
        let password = RandomPassword::draw()?;
        let role = Role::new(&password, Kind::ClusterNode { node_timeout });
        let nodes = (0..6).map(|_| Redis::start_as(&role)).collect::<Result<Vec<_>, _>>()?;
        let cluster = Self { nodes, password };
        let places = cluster.places();
        let mut create = vec!["--cluster", "create"];
        create.extend(places.iter().map(String::as_str));
        create.extend(["--cluster-replicas", "1", "--cluster-yes"]);
        cluster.ask(&create)?;
        for node in &cluster.nodes {
            await_reply(node, "CLUSTER INFO", &["cluster_state:ok", "cluster_known_nodes:6"])?;
            await_replication(node)?;
        }
        Ok(cluster)
    }

    /// `redis+cluster://:PASSWORD@127.0.0.1:PORT,127.0.0.1:PORT..` with all nodes. Keep it off
    /// command lines.
    pub fn url(&self) -> String {
        format!("redis+cluster://:{}@{}", self.password.as_str(), self.places().join(","))
    }

    /// Crashes the master that has this key, and returns its port.
    pub fn kill_master_of(&mut self, key: &str) -> Result<u16, SandboxError> {
        let reply = self.ask(&["GET", key])?;
        // The reply is `MOVED 3999 127.0.0.1:6381`, unless the asked node has the key.
        let moved = reply.trim().strip_prefix("MOVED ").and_then(|to| to.rsplit_once(':'));
        let port = moved.and_then(|(_, port)| port.parse().ok());
        let of_port = |node: &Redis| Some(node.port()) == port;
        let master = self.nodes.remove(self.nodes.iter().position(of_port).unwrap_or(0));
        Ok(master.port())
    }

    fn places(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect()
    }

    fn ask(&self, words: &[&str]) -> Result<String, SandboxError> {
        self.nodes.first().map_or_else(|| Ok(String::new()), |node| node.cli(words))
    }
}

/// A master, its replica, and three Sentinels, two of which must agree.
#[derive(Debug)]
pub struct RedisSentinels {
    master: Option<Redis>,
    replica: Redis,
    sentinels: Vec<Redis>,
    password: RandomPassword,
}

impl RedisSentinels {
    /// A master counts as dead after `down_after` without a sign; Redis's default is 30 s.
    pub fn start(down_after: Duration) -> Result<Self, SandboxError> {
        let password = RandomPassword::draw()?;
        let start = |kind| Redis::start_as(&Role::new(&password, kind));
        let master = start(Kind::Alone)?;
        let replica = start(Kind::ReplicaOf(master.port()))?;
        await_replication(&replica)?;
        let kind = Kind::Sentinel { master: master.port(), down_after };
        let sentinels = (0..3).map(|_| start(kind)).collect::<Result<Vec<_>, _>>()?;
        for sentinel in &sentinels {
            await_reply(sentinel, "INFO sentinel", &["status=ok", "slaves=1,sentinels=3"])?;
        }
        Ok(Self { master: Some(master), replica, sentinels, password })
    }

    /// `redis+sentinel://:PASSWORD@127.0.0.1:PORT,../guard?sentinel_login=:PASSWORD`. Keep it off
    /// command lines.
    pub fn url(&self) -> String {
        let places: Vec<String> =
            self.sentinels.iter().map(|it| format!("127.0.0.1:{}", it.port())).collect();
        let (password, places) = (self.password.as_str(), places.join(","));
        format!("redis+sentinel://:{password}@{places}/{MASTER_NAME}?sentinel_login=:{password}")
    }

    /// Ends the master as a crash would.
    pub fn kill_master(&mut self) {
        self.master = None;
    }

    /// True if the Sentinels promoted the replica.
    pub fn has_failed_over(&self) -> Result<bool, SandboxError> {
        for sentinel in &self.sentinels {
            let named = sentinel.cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME])?;
            if named.lines().last() != Some(&self.replica.port().to_string()) {
                return Ok(false);
            }
        }
        Ok(self.replica.cli(&["ROLE"])?.starts_with("master"))
    }

    /// Starts a replica of the new master. Returns after each Sentinel knows a replica with the
    /// master's data.
    pub fn replace_killed(&mut self) -> Result<(), SandboxError> {
        if self.master.is_some() {
            return Ok(());
        }
        let kind = Kind::ReplicaOf(self.replica.port());
        let replica = Redis::start_as(&Role::new(&self.password, kind))?;
        await_replication(&replica)?;
        for sentinel in &self.sentinels {
            // Sentinels would try the dead server as a replica.
            sentinel.cli(&["SENTINEL", "RESET", MASTER_NAME])?;
        }
        for sentinel in &self.sentinels {
            await_reply(sentinel, "INFO sentinel", &["status=ok", "slaves=1,sentinels=3"])?;
        }
        self.master = Some(std::mem::replace(&mut self.replica, replica));
        Ok(())
    }

    /// Deletes all data at once, on the replica too.
    pub fn flush(&self) -> Result<(), SandboxError> {
        self.master.as_ref().map_or(Ok(()), |master| master.cli(&["FLUSHALL"]).map(drop))
    }

    /// Makes the master hang: connections stay open without answers.
    pub fn stop_master(&self) -> Result<(), SandboxError> {
        self.master.as_ref().map_or(Ok(()), Redis::stop)
    }
}

fn await_replication(node: &Redis) -> Result<(), SandboxError> {
    let role = node.cli(&["ROLE"])?;
    let wanted = if role.starts_with("master") {
        ["role:master", "state=online"]
    } else {
        ["role:slave", "master_link_status:up"]
    };
    await_reply(node, "INFO replication", &wanted)
}

fn await_reply(node: &Redis, question: &str, wanted: &[&str]) -> Result<(), SandboxError> {
    let words: Vec<&str> = question.split(' ').collect();
    let deadline = Instant::now() + LIMIT;
    loop {
        let reply = node.cli(&words)?;
        if wanted.iter().all(|words| reply.contains(words)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            let (program, what) = ("redis-server".to_owned(), "find the servers of its group");
            return Err(SandboxError::TimedOut { program, what, limit: LIMIT, log: reply });
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_fails_over_again_and_again() {
        let mut group = RedisSentinels::start(Duration::from_secs(1)).unwrap();
        for _ in 0..2 {
            assert!(!group.has_failed_over().unwrap());
            group.kill_master();
            let deadline = Instant::now() + LIMIT;
            while !group.has_failed_over().unwrap() {
                assert!(Instant::now() < deadline, "no failover within {LIMIT:?}");
                std::thread::sleep(POLL);
            }
            group.replace_killed().unwrap();
        }
    }

    #[test]
    fn the_master_of_a_key_is_killed_and_the_others_stay() {
        let mut cluster = RedisCluster::start(Duration::from_secs(15)).unwrap();
        let master = cluster.kill_master_of("a-key").unwrap();
        assert_eq!(cluster.nodes.len(), 5);
        let reply = cluster.ask(&["GET", "a-key"]).unwrap();
        assert!(reply.trim().is_empty() || reply.contains(&master.to_string()), "{reply}");
        assert!(cluster.nodes.iter().all(|node| node.port() != master));
    }
}
