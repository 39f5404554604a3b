use crate::error::ErrorOut;
use crate::guard::{Lease, Reservation, Step};
use crate::ids::{PhysicalPage, VirtualPage};
use crate::options::{Backend, Options};
use crate::sys::{self, Api};
use crate::transfer::{Completion, Progress, Ticket, Transfer};
use crate::{Error, Result};
use std::ptr::{self, NonNull};
use std::time::Duration;

/// One line of a demand. All lines of a call are taken, or none.
pub enum Take<'a> {
    /// New pages of an id-owning pool (FULL, STATE): their ids are written.
    New { pool: u32, pages: &'a mut [VirtualPage] },
    /// Window pages in an SWA pool for these virtual pages. Not for `reserve`.
    Window { pool: u32, pages: &'a [VirtualPage] },
    /// Window pages in an SWA pool for the last `count` pages that this call takes of the owner; in `reserve`, for pages named later.
    WindowOfNew { pool: u32, count: u32 },
}

/// Names pages of one pool.
#[derive(Clone, Copy)]
pub struct Pages<'a> {
    pub pool: u32,
    pub pages: &'a [VirtualPage],
}

pub(crate) fn raw_takes(takes: &mut [Take<'_>]) -> Vec<sys::hicache_take_t> {
    takes
        .iter_mut()
        .map(|take| match take {
            Take::New { pool, pages } => {
                sys::hicache_take_t { pool: *pool, page_count: pages.len() as u32, vpages: pages.as_mut_ptr().cast() }
            }
            // The library only reads these.
            Take::Window { pool, pages } => {
                sys::hicache_take_t { pool: *pool, page_count: pages.len() as u32, vpages: pages.as_ptr().cast_mut().cast() }
            }
            Take::WindowOfNew { pool, count } => sys::hicache_take_t { pool: *pool, page_count: *count, vpages: ptr::null_mut() },
        })
        .collect()
}

pub(crate) fn raw_pages(pages: &[Pages<'_>]) -> Vec<sys::hicache_pages_t> {
    pages
        .iter()
        .map(|line| sys::hicache_pages_t { pool: line.pool, page_count: line.pages.len() as u32, vpages: line.pages.as_ptr().cast() })
        .collect()
}

/// An open engine. Any thread may call it; guards borrow it, so it outlives them.
pub struct Engine {
    pub(crate) api: Api,
    pub(crate) raw: NonNull<sys::hicache_engine_t>,
    backend: Backend,
    page_tokens: Vec<u32>,
}

// SAFETY: "any function may be called from any OS thread, and calls on one engine may run concurrently".
unsafe impl Send for Engine {}
unsafe impl Sync for Engine {}

/// Calls a function of the library with an error structure at the end and makes its status a result.
macro_rules! call {
    ($engine:expr, $op:literal, $function:ident $(, $arg:expr)*) => {{
        let engine = $engine;
        let mut error = $crate::error::ErrorOut::new();
        // SAFETY: the engine is open while it is borrowed; pointers are to memory that outlives the call, with true counts.
        let status = unsafe { (engine.api.$function)(engine.raw.as_ptr() $(, $arg)*, &mut error.0) };
        error.check($op, status)
    }};
}
pub(crate) use call;

fn library(options: &Options) -> Result<Api> {
    #[cfg(feature = "dlopen")]
    return sys::load(options.library.as_deref()).map_err(|error| Error::NoLibrary(error.to_string()));
    #[cfg(all(feature = "link", not(feature = "dlopen")))]
    {
        let _ = options;
        return Ok(Api::linked());
    }
    #[cfg(not(any(feature = "dlopen", feature = "link")))]
    compile_error!("enable the feature `dlopen` or `link`");
}

impl Engine {
    /// Opens an engine and takes all of its memory.
    pub fn open(options: &Options) -> Result<Engine> {
        let api = library(options)?;
        let pools = options.raw_pools();
        let (mut raw, mut error) = (ptr::null_mut(), ErrorOut::new());
        // SAFETY: what the options point to outlives the call.
        let status = unsafe { (api.hicache_open)(&options.raw(&pools), &mut raw, &mut error.0) };
        error.check("open", status)?;
        let raw = NonNull::new(raw).expect("hicache_open wrote no engine");
        Ok(Engine { api, raw, backend: options.backend, page_tokens: options.pools.iter().map(|pool| pool.page_tokens).collect() })
    }

    /// Closes the engine, blocking until submitted transfers have ended. Dropping it does the same but cannot say why it failed: Busy,
    /// where a guard was forgotten, leaks the engine.
    pub fn close(self) -> Result<()> {
        let mut engine = std::mem::ManuallyDrop::new(self);
        drop(std::mem::take(&mut engine.page_tokens));
        let mut error = ErrorOut::new();
        // SAFETY: open until now, and not used after.
        let status = unsafe { (engine.api.hicache_close)(engine.raw.as_ptr(), &mut error.0) };
        error.check("close", status)?;
        Ok(())
    }

    /// The engine for functions that this crate does not wrap.
    pub fn raw(&self) -> (&Api, *mut sys::hicache_engine_t) {
        (&self.api, self.raw.as_ptr())
    }

    /// Takes and binds pages.
    pub fn alloc(&self, takes: &mut [Take<'_>]) -> Result<()> {
        let raw = raw_takes(takes);
        call!(self, "alloc", hicache_alloc, raw.as_ptr(), raw.len() as u32).map(drop)
    }

    /// Gives pages back: in an id-owning pool in every pool of the group, in an SWA pool as a tombstone. Never waits.
    pub fn free(&self, frees: &[Pages<'_>]) -> Result<()> {
        let raw = raw_pages(frees);
        call!(self, "free", hicache_free, raw.as_ptr(), raw.len() as u32).map(drop)
    }

    /// Takes pages that hold their place until [`Reservation::load`]; dropping the guard cancels.
    pub fn reserve(&self, takes: &mut [Take<'_>]) -> Result<Reservation<'_>> {
        let raw = raw_takes(takes);
        let mut id = 0;
        call!(self, "reserve", hicache_reserve, raw.as_ptr(), raw.len() as u32, &mut id)?;
        Ok(Reservation { engine: self, id })
    }

    /// Queues copies of bound device pages into host pages.
    pub fn back_up(&self, transfer: &Transfer<'_>) -> Result<Ticket> {
        let raw = transfer.raw(0);
        let mut ticket = 0;
        call!(self, "back up", hicache_back_up, &raw, &mut ticket)?;
        Ok(Ticket(ticket))
    }

    /// Keeps pages where they are while the guard lives.
    pub fn lease(&self, pages: &[Pages<'_>]) -> Result<Lease<'_>> {
        let raw = raw_pages(pages);
        let mut id = 0;
        call!(self, "lease", hicache_lease_acquire, raw.as_ptr(), raw.len() as u32, &mut id)?;
        Ok(Lease { engine: self, id })
    }

    /// Opens a unit of compute on `stream`; dropping the guard closes it.
    pub fn step(&self, stream: u64, pages: &[Pages<'_>]) -> Result<Step<'_>> {
        let raw = raw_pages(pages);
        let mut id = 0;
        call!(self, "step open", hicache_step_open, stream, raw.as_ptr(), raw.len() as u32, &mut id)?;
        Ok(Step { engine: self, id })
    }

    /// Makes `stream` wait until a global layer of the ticket's pages has arrived; on the CPU and null backends blocks instead.
    pub fn layer_wait(&self, ticket: Ticket, layer: u32, stream: u64) -> Result<()> {
        call!(self, "layer wait", hicache_layer_wait, ticket.0, layer, stream).map(drop)
    }

    /// Whether a transfer is done, and how far it is.
    pub fn progress(&self, ticket: Ticket) -> Result<Progress> {
        let mut layers_done = 0;
        let status = call!(self, "ticket status", hicache_ticket_status, ticket.0, &mut layers_done)?;
        Ok(Progress { done: status == sys::HICACHE_OK, layers_done })
    }

    /// Reads finished transfers, oldest first; returns how many. Never blocks.
    pub fn poll(&self, completions: &mut [Completion]) -> Result<usize> {
        let mut count = 0;
        call!(self, "completion poll", hicache_completion_poll, completions.as_mut_ptr(), completions.len() as u32, &mut count)?;
        Ok(count as usize)
    }

    /// As poll, but blocks until there is one or the timeout has passed.
    pub fn wait(&self, timeout: Duration, completions: &mut [Completion]) -> Result<usize> {
        let (mut count, ns) = (0, timeout.as_nanos().min(u64::MAX as u128) as u64);
        call!(self, "completion wait", hicache_completion_wait, ns, completions.as_mut_ptr(), completions.len() as u32, &mut count)?;
        Ok(count as usize)
    }

    /// Whether a take of these (pool, pages) would succeed now.
    pub fn fits(&self, demands: &[(u32, u32)]) -> Result<()> {
        let raw: Vec<_> = demands.iter().map(|&(pool, page_count)| sys::hicache_demand_t { pool, page_count }).collect();
        call!(self, "fits", hicache_fits, raw.as_ptr(), raw.len() as u32).map(drop)
    }

    /// Packs the device arena without a bound.
    pub fn compact(&self) -> Result<sys::hicache_compact_result_t> {
        let budget = sys::hicache_compact_budget_t { tier: sys::HICACHE_TIER_DEVICE, pool: sys::HICACHE_NO_POOL, ..Default::default() };
        let mut result = Default::default();
        call!(self, "compact", hicache_compact, &budget, &mut result)?;
        Ok(result)
    }

    pub fn stats(&self) -> Result<sys::hicache_stats_t> {
        let mut stats = Default::default();
        call!(self, "stats", hicache_stats, &mut stats)?;
        Ok(stats)
    }

    /// Where a pool is in a tier's arena (HICACHE_TIER_*).
    pub fn pool_info(&self, tier: u32, pool: u32) -> Result<sys::hicache_pool_info_t> {
        let mut info = Default::default();
        call!(self, "pool info", hicache_pool_info, tier, pool, &mut info)?;
        Ok(info)
    }

    /// A snapshot of a pool's physical pages, one byte each: HICACHE_PAGE_*, with HICACHE_PAGE_PINNED as a flag.
    pub fn map(&self, tier: u32, pool: u32) -> Result<Vec<u8>> {
        let mut states = vec![0; self.pool_info(tier, pool)?.page_count as usize];
        call!(self, "map", hicache_map, tier, pool, 0, states.len() as u32, states.as_mut_ptr())?;
        Ok(states)
    }

    /// Recomputes every invariant: for tests and diagnosis.
    pub fn verify(&self) -> Result<()> {
        call!(self, "verify", hicache_verify, ptr::null_mut(), 0).map(drop)
    }

    /// The bytes of a device page of the CPU backend. Dereference it only while a lease or step holds the page.
    pub fn device_page(&self, pool: u32, page: PhysicalPage) -> Result<*mut [u8]> {
        let info = self.pool_info(sys::HICACHE_TIER_DEVICE, pool)?;
        if self.backend != Backend::Cpu || page.0 >= info.page_count {
            let message = format!("page {} of {} on backend {:?} has no bytes in host memory", page.0, info.page_count, self.backend);
            return Err(Error::InvalidArgument(Box::new(crate::Detail { op: "device page", message, ..Default::default() })));
        }
        let address = info.arena_base + u64::from(page.0) * info.page_bytes;
        Ok(ptr::slice_from_raw_parts_mut(address as *mut u8, info.page_bytes as usize))
    }

    pub(crate) fn page_tokens(&self, pool: u32) -> usize {
        self.page_tokens.get(pool as usize).map_or(1, |&tokens| tokens as usize)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: open, and not used after.
        unsafe { (self.api.hicache_close)(self.raw.as_ptr(), ptr::null_mut()) };
    }
}
