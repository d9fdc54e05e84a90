//! Instances that are killed, stopped, frozen and started at random: as processes of their own, or several in one host
//! process (a fjall store belongs to one process).

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use super::TestBed;

pub const INSTANCES: usize = 3;
/// Maximum time of a graceful stop: an instance drains for 20 s and commits; the machine may be shared.
const STOP_BOUND: Duration = Duration::from_secs(120);

/// Control of the instances. A slot holds at most one running instance.
pub trait InstanceSet {
    /// Starts an instance if the slot is free; returns whether it did.
    fn start(&mut self, slot: usize) -> bool;
    /// Kills the instance; returns whether there was one.
    fn kill(&mut self, slot: usize) -> bool;
    /// Asks the instance to stop gracefully and does not wait; returns whether there was one.
    fn stop(&mut self, slot: usize) -> bool;
    /// Kills every instance with SIGKILL.
    fn kill_all(&mut self);
    /// Freezes or resumes the instance: the group takes a frozen one for dead. Returns whether there was one.
    fn freeze(&mut self, slot: usize, frozen: bool) -> bool;
    /// Returns the id of the process that runs the instance.
    fn process(&self, slot: usize) -> Option<u32>;
    /// Panics if an instance has ended by itself.
    fn check_alive(&mut self);
    /// Stops every instance gracefully and waits for the end.
    fn stop_all(&mut self);
}

fn signal(child: &Child, name: &str) {
    let killed = Command::new("/bin/kill").args([format!("-{name}"), child.id().to_string()]).status().unwrap();
    assert!(killed.success(), "SIG{name} to {}", child.id());
}

fn wait(child: &mut Child, log: &PathBuf) {
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < STOP_BOUND, "the process does not end: {}", tail_of(log));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn tail_of(log: &PathBuf) -> String {
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

    /// Whether the process has ended, which it must do only after a stop.
    fn has_ended(&mut self) -> bool {
        let Some(status) = self.child.try_wait().unwrap() else { return false };
        assert!(
            self.is_stopping && status.code() == Some(0),
            "the process ended by itself ({status}): {}",
            tail_of(&self.log)
        );
        true
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Instances as `utxo-store run` processes.
pub struct InstanceProcesses<'g> {
    testbed: &'g TestBed,
    /// Whether members are static (`group.instance.id`): one that returns within the session gets its partitions back.
    are_static: bool,
    /// Program of each slot; `None`: the program of this tree.
    programs: [Option<PathBuf>; INSTANCES],
    members: [Option<Member>; INSTANCES],
}

impl<'g> InstanceProcesses<'g> {
    pub fn new(testbed: &'g TestBed, are_static: bool) -> Self {
        InstanceProcesses { testbed, are_static, programs: Default::default(), members: Default::default() }
    }
}

impl InstanceProcesses<'_> {
    fn address_file(&self, slot: usize) -> PathBuf {
        self.testbed.bench.path(&format!("run-{slot}.address"))
    }

    /// Returns the address of an instance that listens.
    pub fn address(&self, slot: usize) -> Option<String> {
        self.members[slot].as_ref()?;
        Some(fs::read_to_string(self.address_file(slot)).ok()?.trim().to_owned())
    }

    /// Sets the program of the next starts of a slot; `None`: the program of this tree.
    pub fn use_program(&mut self, slot: usize, program: Option<PathBuf>) {
        self.programs[slot] = program;
    }

    /// Waits until the instance, which was asked to stop, has ended.
    pub fn wait_until_stopped(&mut self, slot: usize) {
        if let Some(member) = &mut self.members[slot] {
            wait(&mut member.child, &member.log);
        }
        self.check_alive();
    }

    /// Returns the command with the program of a slot.
    fn with_program(&self, slot: usize, command: Command) -> Command {
        let Some(program) = &self.programs[slot] else { return command };
        let mut other = Command::new(program);
        other.args(command.get_args()).env_clear();
        other.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        other
    }

    /// Waits until every instance has ended by itself with exit code 1.
    pub fn wait_until_all_have_failed(&mut self) {
        for slot in 0..INSTANCES {
            let Some(mut member) = self.members[slot].take() else { continue };
            wait(&mut member.child, &member.log);
            let status = member.child.wait().unwrap();
            assert_eq!(status.code(), Some(1), "{}", tail_of(&member.log));
        }
    }
}

impl InstanceSet for InstanceProcesses<'_> {
    fn start(&mut self, slot: usize) -> bool {
        if self.members[slot].as_mut().is_some_and(|member| !member.has_ended()) {
            return false;
        }
        let address = self.address_file(slot);
        fs::remove_file(&address).ok();
        let address = address.to_str().unwrap();
        let command = self.testbed.command(&["run", "--exit-with-stdin", "--http-address-file", address]);
        let mut command = self.with_program(slot, command);
        if self.are_static {
            command.env("UTXO_STORE__KAFKA__INSTANCE_ID", format!("torture-{slot}"));
        }
        self.members[slot] = Some(Member::spawn(command, self.testbed.bench.path(&format!("run-{slot}.log"))));
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

    fn check_alive(&mut self) {
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
        self.check_alive();
    }
}

/// Several instances in one host process ([`super::host`]).
pub struct HostProcess<'g> {
    testbed: &'g TestBed,
    member: Option<Member>,
    is_running: [bool; INSTANCES],
}

impl<'g> HostProcess<'g> {
    pub fn new(testbed: &'g TestBed) -> Self {
        HostProcess { testbed, member: None, is_running: [false; INSTANCES] }
    }

    fn send_command(&mut self, what: &str, slot: usize) {
        let TestBed { bench, variables, .. } = self.testbed;
        let member = self.member.get_or_insert_with(|| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args([
                "--exact",
                "torture::host::run_as_host_process",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ]);
            command.env_clear().env(super::host::CONFIG, bench.path("utxo-store.toml"));
            command.envs(variables.iter().map(|(key, value)| (key, value)));
            Member::spawn(command, bench.path("host.log"))
        });
        let written = writeln!(member.child.stdin.as_mut().unwrap(), "{what} {slot}");
        if written.is_err() {
            member.has_ended();
        }
        written.unwrap();
    }

    fn send_if_running(&mut self, slot: usize, what: &str) -> bool {
        let is_running = std::mem::take(&mut self.is_running[slot]);
        if is_running {
            self.send_command(what, slot);
        }
        is_running
    }
}

impl InstanceSet for HostProcess<'_> {
    fn start(&mut self, slot: usize) -> bool {
        let is_started = !std::mem::replace(&mut self.is_running[slot], true);
        if is_started {
            self.send_command("start", slot);
        }
        is_started
    }

    fn kill(&mut self, slot: usize) -> bool {
        self.send_if_running(slot, "kill")
    }

    fn stop(&mut self, slot: usize) -> bool {
        self.send_if_running(slot, "stop")
    }

    fn kill_all(&mut self) {
        self.member = None;
        self.is_running = [false; INSTANCES];
    }

    fn freeze(&mut self, _: usize, frozen: bool) -> bool {
        let member = self.member.as_ref();
        member.inspect(|member| signal(&member.child, if frozen { "STOP" } else { "CONT" })).is_some()
    }

    fn process(&self, _: usize) -> Option<u32> {
        self.member.as_ref().map(|member| member.child.id())
    }

    fn check_alive(&mut self) {
        if let Some(member) = &mut self.member {
            assert!(!member.has_ended(), "the host process ended: {}", tail_of(&member.log));
        }
    }

    fn stop_all(&mut self) {
        let Some(mut member) = self.member.take() else { return };
        member.is_stopping = true;
        drop(member.child.stdin.take());
        wait(&mut member.child, &member.log);
        assert!(member.has_ended());
        self.is_running = [false; INSTANCES];
    }
}
