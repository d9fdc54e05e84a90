//! A simulation of discrete events: batches of transactions on their way from the brokers through the instances and the
//! database to the outcomes. The costs are measured, everything else is computed. Pure: equal inputs give equal
//! results.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use utxo_store::rng::SplitMix64;

/// Transactions of one batch, as many as the dispatcher's batches have rows.
const BATCH: f64 = 256.0;
/// Unfinished batches of one instance: enough that its cores are busy while others wait for nodes and brokers. More
/// would only wait in queues, for longer than the simulated time.
const BATCHES_IN_FLIGHT: usize = 16;
const NANOS: f64 = 1e9;

/// Measured costs, in µs.
#[derive(Debug, Clone, Copy)]
pub struct Costs {
    /// CPU of an instance, a transaction.
    pub instance: f64,
    /// CPU of a broker, a transaction: fetched, and its outcome taken.
    pub broker: f64,
    /// CPU of a node, a transaction and a copy.
    pub database: f64,
    /// CPU of a node, a request.
    pub request: f64,
    /// Time of the sequencer, a contest.
    pub contest: f64,
    /// Time of the sequencer to set a listed transaction mined; 0: no blocks.
    pub mined: f64,
    /// Time of a message from one machine to another.
    pub network: f64,
}

/// Machines of a deployment.
#[derive(Debug, Clone, Copy)]
pub struct Fleet {
    pub instances: usize,
    pub partitions: usize,
    pub brokers: usize,
    /// Nodes of the database; 0: the null engine.
    pub nodes: usize,
    /// Copies of each record.
    pub copies: usize,
    pub cores: usize,
    /// All processes share the cores of one machine.
    pub is_one_machine: bool,
}

/// How transactions come.
#[derive(Debug, Clone, Copy)]
pub enum Load {
    /// There is always another batch in each partition.
    Backlog,
    /// So many transactions a second, at random times, in all partitions alike.
    Rate(f64),
}

/// Result of a simulated time.
#[derive(Debug, Clone, Copy)]
pub struct Simulated {
    /// Transactions a second that are live or contested.
    pub rate: f64,
    /// Time from the produce of a batch to its outcomes, ms: median and 99th percentile.
    pub latency_ms: (f64, f64),
    /// Share of the time in which the cores of instances, brokers and nodes, and the sequencer are busy.
    pub instances: f64,
    pub brokers: f64,
    pub nodes: f64,
    pub chain: f64,
}

/// Steps of a batch. Each step but the last two is work of one machine; the requests are work of every node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Fetch,
    Plan,
    Spend,
    Continue,
    Create,
    Publish,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A batch is produced to a partition.
    Produced { partition: usize },
    /// A batch reaches the machine of a step.
    Reached { batch: usize, step: Step, machine: usize },
    /// A core of a machine has done its work for a batch.
    Worked { batch: usize, step: Step, machine: usize },
}

struct Batch {
    partition: usize,
    produced_at: u64,
    /// Requests of the present step that are not answered.
    open_requests: usize,
}

#[derive(Default)]
struct Machine {
    busy_cores: usize,
    queue: VecDeque<(usize, Step)>,
    busy_nanos: f64,
}

/// Runs a deployment for some simulated seconds. The first half is a warm-up and does not count. `double_spends` is the
/// share of transactions that are contested.
pub fn simulate(costs: &Costs, fleet: &Fleet, load: Load, double_spends: f64, seconds: f64) -> Simulated {
    let end = (seconds * NANOS) as u64;
    let mut simulation = Simulation::new(*costs, *fleet, load, double_spends, end);
    simulation.start();
    while let Some(Reverse((now, _, event))) = simulation.events.pop() {
        if now > end {
            break;
        }
        simulation.now = now;
        simulation.handle(event);
    }
    simulation.result(seconds)
}

struct Simulation {
    costs: Costs,
    fleet: Fleet,
    load: Load,
    double_spends: f64,
    end: u64,
    now: u64,
    next_number: u64,
    random: SplitMix64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    machines: Vec<Machine>,
    batches: Vec<Batch>,
    free_batches: Vec<usize>,
    /// Batches that wait in a partition because its instance has as many as it takes, by the time of their produce.
    waiting: Vec<VecDeque<u64>>,
    in_flight: Vec<usize>,
    latencies: Vec<u64>,
    chain_busy_nanos: f64,
    chain_free_at: u64,
}

impl Simulation {
    fn new(costs: Costs, fleet: Fleet, load: Load, double_spends: f64, end: u64) -> Self {
        let machines = if fleet.is_one_machine { 1 } else { fleet.instances + fleet.brokers + fleet.nodes };
        Simulation {
            costs,
            fleet,
            load,
            double_spends,
            end,
            now: 0,
            next_number: 0,
            random: SplitMix64::new(1),
            events: BinaryHeap::new(),
            machines: (0..machines).map(|_| Machine::default()).collect(),
            batches: Vec::new(),
            free_batches: Vec::new(),
            waiting: vec![VecDeque::new(); fleet.partitions],
            in_flight: vec![0; fleet.instances],
            latencies: Vec::new(),
            chain_busy_nanos: 0.0,
            chain_free_at: 0,
        }
    }

    fn start(&mut self) {
        match self.load {
            Load::Rate(_) => (0..self.fleet.partitions).for_each(|partition| self.produce_next(partition)),
            Load::Backlog => {
                let owned = |instance| (instance..self.fleet.partitions).step_by(self.fleet.instances);
                let first: Vec<usize> = (0..self.fleet.instances)
                    .flat_map(|instance| owned(instance).cycle().take(BATCHES_IN_FLIGHT))
                    .collect();
                first.into_iter().for_each(|partition| self.begin(partition, 0));
            }
        }
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.next_number += 1;
        self.events.push(Reverse((at, self.next_number, event)));
    }

    /// Schedules the next batch of a partition: the times between two batches are exponential.
    fn produce_next(&mut self, partition: usize) {
        let Load::Rate(rate) = self.load else { return };
        let mean = BATCH * self.fleet.partitions as f64 / rate * NANOS;
        let uniform = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let at = self.now + (-mean * (1.0 - uniform).ln()) as u64;
        self.schedule(at, Event::Produced { partition });
    }

    fn owner(&self, partition: usize) -> usize {
        partition % self.fleet.instances
    }

    fn begin(&mut self, partition: usize, produced_at: u64) {
        let owner = self.owner(partition);
        self.in_flight[owner] += 1;
        let batch = Batch { partition, produced_at, open_requests: 0 };
        let number = match self.free_batches.pop() {
            Some(number) => {
                self.batches[number] = batch;
                number
            }
            None => {
                self.batches.push(batch);
                self.batches.len() - 1
            }
        };
        self.go_to(number, Step::Fetch);
    }

    /// Sends a batch to the machines of its next step.
    fn go_to(&mut self, batch: usize, step: Step) {
        let Fleet { instances, brokers, nodes, .. } = self.fleet;
        let partition = self.batches[batch].partition;
        let machines = match step {
            Step::Fetch | Step::Publish => {
                let broker = instances + partition % brokers;
                broker..broker + 1
            }
            Step::Plan | Step::Continue => self.owner(partition)..self.owner(partition) + 1,
            // The rows of a batch lie with all nodes, or each row with another one.
            Step::Spend | Step::Create => {
                let touched = nodes.min(BATCH as usize);
                let first = instances + brokers + self.random.below((nodes - touched + 1) as u64) as usize;
                first..first + touched
            }
        };
        self.batches[batch].open_requests = machines.len();
        let delay = if self.fleet.is_one_machine { 0 } else { (self.costs.network * 1e3) as u64 };
        for machine in machines {
            let machine = if self.fleet.is_one_machine { 0 } else { machine };
            self.schedule(self.now + delay, Event::Reached { batch, step, machine });
        }
    }

    /// Returns the work of a machine for one step of one batch, in nanoseconds.
    fn work(&self, step: Step) -> f64 {
        let Costs { instance, broker, database, request, .. } = self.costs;
        let micros = match step {
            Step::Fetch | Step::Publish => BATCH * broker / 2.0,
            Step::Plan | Step::Continue => BATCH * instance / 2.0,
            Step::Spend | Step::Create => {
                let touched = self.fleet.nodes.min(BATCH as usize) as f64;
                self.fleet.copies as f64 * (BATCH / touched * database / 2.0 + request)
            }
        };
        micros * 1e3
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Produced { partition } => {
                let now = self.now;
                match self.in_flight[self.owner(partition)] < BATCHES_IN_FLIGHT {
                    true => self.begin(partition, now),
                    false => self.waiting[partition].push_back(now),
                }
                self.produce_next(partition);
            }
            Event::Reached { batch, step, machine } => {
                self.machines[machine].queue.push_back((batch, step));
                self.work_on(machine);
            }
            Event::Worked { batch, step, machine } => {
                self.machines[machine].busy_cores -= 1;
                self.work_on(machine);
                self.batches[batch].open_requests -= 1;
                if self.batches[batch].open_requests == 0 {
                    self.advance(batch, step);
                }
            }
        }
    }

    fn work_on(&mut self, machine: usize) {
        while self.machines[machine].busy_cores < self.fleet.cores {
            let Some((batch, step)) = self.machines[machine].queue.pop_front() else { return };
            let work = self.work(step);
            self.machines[machine].busy_cores += 1;
            if self.now >= self.end / 2 {
                self.machines[machine].busy_nanos += work;
            }
            self.schedule(self.now + work as u64, Event::Worked { batch, step, machine });
        }
    }

    fn advance(&mut self, batch: usize, step: Step) {
        let has_nodes = self.fleet.nodes > 0;
        match step {
            Step::Fetch => self.go_to(batch, Step::Plan),
            Step::Plan => self.go_to(batch, if has_nodes { Step::Spend } else { Step::Continue }),
            Step::Spend => self.go_to(batch, Step::Continue),
            Step::Continue => self.go_to(batch, if has_nodes { Step::Create } else { Step::Publish }),
            Step::Create => self.go_to(batch, Step::Publish),
            Step::Publish => self.finish(batch),
        }
    }

    fn finish(&mut self, batch: usize) {
        let Batch { partition, produced_at, .. } = self.batches[batch];
        self.free_batches.push(batch);
        if self.now >= self.end / 2 {
            self.latencies.push(self.now - produced_at);
        }
        // Blocks list as many transactions a second as become live.
        let contests = BATCH * self.double_spends;
        let work = (contests * self.costs.contest + BATCH * self.costs.mined) * 1e3;
        if work > 0.0 {
            let begins = self.chain_free_at.max(self.now);
            self.chain_free_at = begins + work as u64;
            let counted = self.chain_free_at.min(self.end) as f64 - begins.max(self.end / 2) as f64;
            self.chain_busy_nanos += counted.max(0.0);
        }
        let owner = self.owner(partition);
        self.in_flight[owner] -= 1;
        match self.load {
            Load::Backlog => self.begin(partition, self.now),
            Load::Rate(_) => {
                // The oldest batch of the instance's partitions.
                let owned = (owner..self.fleet.partitions).step_by(self.fleet.instances);
                let oldest = owned.filter_map(|of| self.waiting[of].front().map(|at| (*at, of))).min();
                if let Some((produced_at, partition)) = oldest {
                    self.waiting[partition].pop_front();
                    self.begin(partition, produced_at);
                }
            }
        }
    }

    fn result(mut self, seconds: f64) -> Simulated {
        self.latencies.sort_unstable();
        let counted = seconds / 2.0;
        let percentile = |share: f64| {
            let at = (self.latencies.len() as f64 * share) as usize;
            self.latencies.get(at).map_or(f64::INFINITY, |nanos| *nanos as f64 / 1e6)
        };
        let Fleet { instances, brokers, cores, .. } = self.fleet;
        let busy = |machines: &[Machine]| {
            let all: f64 = machines.iter().map(|machine| machine.busy_nanos).sum();
            all / (machines.len().max(1) * cores) as f64 / counted / NANOS
        };
        let (of_instances, others) = self.machines.split_at(instances.min(self.machines.len()));
        let (of_brokers, of_nodes) = others.split_at(brokers.min(others.len()));
        Simulated {
            rate: self.latencies.len() as f64 * BATCH / counted,
            latency_ms: (percentile(0.5), percentile(0.99)),
            instances: busy(of_instances),
            brokers: busy(of_brokers),
            nodes: busy(of_nodes),
            chain: self.chain_busy_nanos / counted / NANOS,
        }
    }
}
