//! How many workers.

/// Sizes of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolSize {
    /// Worker threads.
    pub threads: usize,
    /// How many of them may run stores at one time.
    pub store_threads: usize,
    /// Most units waiting in each queue.
    pub queue_units: usize,
}

impl PoolSize {
    /// `loads` workers that only load beside `stores` that also store.
    pub fn new(loads: usize, stores: usize) -> Self {
        let (loads, stores) = (loads.clamp(1, 256), stores.clamp(1, 256));
        Self {
            threads: loads + stores,
            store_threads: stores,
            queue_units: 1 << 16,
        }
    }
}

impl Default for PoolSize {
    /// From the CPUs this process may use (affinity and cgroup quota): I/O waits, so two workers per CPU each way,
    /// at least two and at most eight.
    fn default() -> Self {
        let n = (2 * usable_cpus()).clamp(2, 8);
        Self::new(n, n)
    }
}

/// CPUs this process may use: the smallest of affinity and cgroup quota, at least one.
pub fn usable_cpus() -> usize {
    // the standard library reads the affinity mask and cgroup v1/v2 quotas
    std::thread::available_parallelism().map_or(1, usize::from)
}
