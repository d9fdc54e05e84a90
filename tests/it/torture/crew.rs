//! Instances that are killed, stopped, frozen and started at random: processes of their own, or (fjall's store belongs to one process)
//! several in one process that is.

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use super::Ground;

pub const INSTANCES: usize = 3;
/// An instance that is told to stop drains for 20 s, and commits; two cores may be shared by many.
const STOP_BOUND: Duration = Duration::from_secs(120);

/// What becomes of instances. A slot may have one that runs.
pub trait Crew {
    /// Starts one, where none runs; answers whether it did.
    fn start(&mut self, slot: usize) -> bool;
    /// Ends it where it stands; answers whether there was one.
    fn kill(&mut self, slot: usize) -> bool;
    /// Tells it to end in order, and does not wait; answers whether there was one.
    fn stop(&mut self, slot: usize) -> bool;
    /// Ends everything with SIGKILL.
    fn kill_all(&mut self);
    /// Freezes it, or has it go on: for others it is as good as dead, and does not know. Answers whether there was one.
    fn freeze(&mut self, slot: usize, frozen: bool) -> bool;
    /// The process that it is, or is in.
    fn process(&self, slot: usize) -> Option<u32>;
    /// Fails where one has ended by itself.
    fn look(&mut self);
    /// Tells all to end in order, and waits for that.
    fn stop_all(&mut self);
}

fn signal(child: &Child, name: &str) {
    let killed = Command::new("/bin/kill").args([format!("-{name}"), child.id().to_string()]).status().unwrap();
    assert!(killed.success(), "SIG{name} to {}", child.id());
}

fn wait(child: &mut Child, log: &PathBuf) {
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < STOP_BOUND, "it does not end: {}", end_of(log));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn end_of(log: &PathBuf) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

struct Member {
    child: Child,
    log: PathBuf,
    is_stopping: bool,
}

impl Member {
    fn spawn(mut command: Command, log: PathBuf) -> Self {
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let child = command.stdin(Stdio::piped()).stderr(file).stdout(Stdio::null()).spawn().unwrap();
        Member { child, log, is_stopping: false }
    }

    /// Whether it has ended, as it was told to.
    fn has_ended(&mut self) -> bool {
        let Some(status) = self.child.try_wait().unwrap() else { return false };
        assert!(self.is_stopping && status.code() == Some(0), "it ended ({status}): {}", end_of(&self.log));
        true
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// `utxo-store run` as processes.
pub struct Processes<'g> {
    ground: &'g Ground,
    /// With `group.instance.id`s: who comes back within the session has its partitions back.
    are_static: bool,
    members: [Option<Member>; INSTANCES],
}

impl<'g> Processes<'g> {
    pub fn new(ground: &'g Ground, are_static: bool) -> Self {
        Processes { ground, are_static, members: Default::default() }
    }
}

impl Processes<'_> {
    /// Waits until every instance has ended by itself, with an error.
    pub fn wait_until_all_have_failed(&mut self) {
        for slot in 0..INSTANCES {
            let Some(mut member) = self.members[slot].take() else { continue };
            wait(&mut member.child, &member.log);
            let status = member.child.wait().unwrap();
            assert_eq!(status.code(), Some(1), "{}", end_of(&member.log));
        }
    }
}

impl Crew for Processes<'_> {
    fn start(&mut self, slot: usize) -> bool {
        if self.members[slot].as_mut().is_some_and(|member| !member.has_ended()) {
            return false;
        }
        let mut command = self.ground.command(&["run", "--exit-with-stdin"]);
        if self.are_static {
            command.env("UTXO_STORE__KAFKA__INSTANCE_ID", format!("torture-{slot}"));
        }
        self.members[slot] = Some(Member::spawn(command, self.ground.bench.path(&format!("run-{slot}.log"))));
        true
    }

    fn kill(&mut self, slot: usize) -> bool {
        self.members[slot].take().is_some()
    }

    fn stop(&mut self, slot: usize) -> bool {
        let Some(member) = self.members[slot].as_mut().filter(|member| !member.is_stopping) else { return false };
        signal(&member.child, "CONT");
        signal(&member.child, "TERM");
        member.is_stopping = true;
        true
    }

    fn kill_all(&mut self) {
        self.members.iter_mut().for_each(|member| drop(member.take()));
    }

    fn freeze(&mut self, slot: usize, frozen: bool) -> bool {
        let member = self.members[slot].as_mut().filter(|member| !member.is_stopping);
        member.inspect(|member| signal(&member.child, if frozen { "STOP" } else { "CONT" })).is_some()
    }

    fn process(&self, slot: usize) -> Option<u32> {
        self.members[slot].as_ref().map(|member| member.child.id())
    }

    fn look(&mut self) {
        for member in &mut self.members {
            if member.as_mut().is_some_and(Member::has_ended) {
                *member = None;
            }
        }
    }

    fn stop_all(&mut self) {
        for slot in 0..INSTANCES {
            self.stop(slot);
        }
        for member in self.members.iter_mut().filter_map(Option::as_mut) {
            wait(&mut member.child, &member.log);
        }
        self.look();
    }
}

/// Several instances in one process ([`super::host`]).
pub struct Host<'g> {
    ground: &'g Ground,
    member: Option<Member>,
    runs: [bool; INSTANCES],
}

impl<'g> Host<'g> {
    pub fn new(ground: &'g Ground) -> Self {
        Host { ground, member: None, runs: [false; INSTANCES] }
    }

    fn say(&mut self, what: &str, slot: usize) {
        let Ground { bench, variables, .. } = self.ground;
        let member = self.member.get_or_insert_with(|| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "torture::host::is_a_process", "--ignored", "--nocapture", "--test-threads=1"]);
            command.env_clear().env(super::host::CONFIG, bench.path("utxo-store.toml"));
            command.envs(variables.iter().map(|(key, value)| (key, value)));
            Member::spawn(command, bench.path("host.log"))
        });
        let told = writeln!(member.child.stdin.as_mut().unwrap(), "{what} {slot}");
        if told.is_err() {
            member.has_ended();
        }
        told.unwrap();
    }

    fn if_runs(&mut self, slot: usize, what: &str) -> bool {
        let runs = std::mem::take(&mut self.runs[slot]);
        if runs {
            self.say(what, slot);
        }
        runs
    }
}

impl Crew for Host<'_> {
    fn start(&mut self, slot: usize) -> bool {
        let starts = !std::mem::replace(&mut self.runs[slot], true);
        if starts {
            self.say("start", slot);
        }
        starts
    }

    fn kill(&mut self, slot: usize) -> bool {
        self.if_runs(slot, "kill")
    }

    fn stop(&mut self, slot: usize) -> bool {
        self.if_runs(slot, "stop")
    }

    fn kill_all(&mut self) {
        self.member = None;
        self.runs = [false; INSTANCES];
    }

    fn freeze(&mut self, _: usize, frozen: bool) -> bool {
        let member = self.member.as_ref();
        member.inspect(|member| signal(&member.child, if frozen { "STOP" } else { "CONT" })).is_some()
    }

    fn process(&self, _: usize) -> Option<u32> {
        self.member.as_ref().map(|member| member.child.id())
    }

    fn look(&mut self) {
        if let Some(member) = &mut self.member {
            assert!(!member.has_ended(), "it ended: {}", end_of(&member.log));
        }
    }

    fn stop_all(&mut self) {
        let Some(mut member) = self.member.take() else { return };
        member.is_stopping = true;
        drop(member.child.stdin.take());
        wait(&mut member.child, &member.log);
        assert!(member.has_ended());
        self.runs = [false; INSTANCES];
    }
}
