//! The two queues, and which units a worker takes next.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use super::work::{Class, Work};

/// While loads run, one store thread in so many goes on.
const BESIDE_LOADS: usize = 4;

/// A batch is not shared out into more parts than this.
const CRUMBS: usize = 8;

/// Units of one submission.
pub(super) struct Job {
    /// Whose it is.
    pub(super) owner: usize,
    pub(super) work: Arc<dyn Work>,
    pub(super) next: usize,
    pub(super) units: usize,
    pub(super) run: usize,
    /// Most units run together; 0: each by itself.
    pub(super) batch: usize,
}

/// What waits, and how many run.
#[derive(Default)]
pub(super) struct Queues {
    pub(super) loads: VecDeque<Job>,
    pub(super) stores: VecDeque<Job>,
    pub(super) load_units: usize,
    pub(super) store_units: usize,
    pub(super) running: usize,
    pub(super) running_stores: usize,
    /// How many run, by owner.
    running_of: Vec<usize>,
    /// How often a worker left stores where they were because of loads.
    pub(super) held: u64,
    /// Workers that wait for work.
    pub(super) waiting: usize,
    pub(super) stop: bool,
}

/// Units that one worker took.
pub(super) struct TakenUnits {
    pub(super) owner: usize,
    pub(super) class: Class,
    pub(super) work: Arc<dyn Work>,
    pub(super) range: Range<usize>,
    /// Whether they are run together.
    pub(super) together: bool,
}

impl Queues {
    /// The number of a new owner.
    pub(super) fn add_owner(&mut self) -> usize {
        self.running_of.push(0);
        self.running_of.len() - 1
    }

    /// Notes that an owner's units begin to run.
    pub(super) fn begin(&mut self, owner: usize) {
        self.running += 1;
        if let Some(n) = self.running_of.get_mut(owner) {
            *n += 1;
        }
    }

    /// Notes that they have ended; returns whether nothing of it runs any more.
    pub(super) fn end(&mut self, owner: usize) -> bool {
        self.running -= 1;
        let Some(n) = self.running_of.get_mut(owner) else {
            return true;
        };
        *n = n.saturating_sub(1);
        *n == 0
    }

    /// Units of an owner that wait.
    pub(super) fn queued_by(&self, owner: usize) -> usize {
        let all = self.loads.iter().chain(&self.stores);
        all.filter(|j| j.owner == owner).map(|j| j.units - j.next).sum()
    }

    /// Whether anything of an owner waits or runs.
    pub(super) fn is_busy(&self, owner: usize) -> bool {
        self.running_of.get(owner).is_some_and(|&n| n > 0) || self.queued_by(owner) > 0
    }

    /// Takes what waits in the queue of `class`, of one owner or of all.
    pub(super) fn take_queued(&mut self, class: Class, owner: Option<usize>) -> Vec<Job> {
        let (queue, waiting) = self.of(class);
        let all = std::mem::take(queue);
        let (taken, left): (Vec<Job>, Vec<Job>) =
            all.into_iter().partition(|j| owner.is_none_or(|o| j.owner == o));
        *waiting = left.iter().map(|j| j.units - j.next).sum();
        *queue = left.into();
        taken
    }

    /// The queue of a class and its units.
    pub(super) fn of(&mut self, class: Class) -> (&mut VecDeque<Job>, &mut usize) {
        match class {
            Class::Load => (&mut self.loads, &mut self.load_units),
            Class::Store => (&mut self.stores, &mut self.store_units),
        }
    }

    pub(super) fn is_claimable(&self, store_threads: usize) -> bool {
        self.next_class(store_threads).is_some()
    }

    fn next_class(&self, store_threads: usize) -> Option<Class> {
        match () {
            () if !self.loads.is_empty() => Some(Class::Load),
            () if !self.stores.is_empty() && self.running_stores < self.most_stores(store_threads) => {
                Some(Class::Store)
            }
            () => None,
        }
    }

    /// How many stores may run: fewer beside loads, which share the device with them.
    fn most_stores(&self, store_threads: usize) -> usize {
        match self.running - self.running_stores {
            0 => store_threads,
            _ => store_threads.div_ceil(BESIDE_LOADS),
        }
    }

    /// The next run of units a worker should take.
    pub(super) fn claim(&mut self, store_threads: usize) -> Option<TakenUnits> {
        let class = self.next_class(store_threads)?;
        let idle = match class {
            Class::Load => self.waiting,
            Class::Store => self
                .waiting
                .min(store_threads.saturating_sub(self.running_stores + 1)),
        };
        let (queue, waiting) = self.of(class);
        let alone = queue.len() == 1;
        let job = queue.front_mut()?;
        let left = job.units - job.next;
        let take = match job.batch {
            0 => job.run,
            // shared out among those that have nothing else to do, but not into crumbs
            most if alone => left.div_ceil(idle + 1).clamp(most.div_ceil(CRUMBS), most),
            most => most,
        };
        let range = job.next..job.next + take.min(left);
        let together = job.batch > 0;
        job.next = range.end;
        *waiting = waiting.saturating_sub(range.len());
        let (owner, work) = (job.owner, Arc::clone(&job.work));
        if job.next >= job.units {
            queue.pop_front();
        }
        Some(TakenUnits {
            owner,
            class,
            work,
            range,
            together,
        })
    }
}
