use crate::engine::{call, Engine};
use crate::ids::HostPage;
use crate::{sys, Result};
use std::ptr;

/// Leased host pages with their bytes, for storage I/O and inspection. None for a page of the null backend.
pub struct HostView<'e> {
    engine: &'e Engine,
    id: u64,
    addresses: Vec<*mut u8>,
    page_bytes: usize,
}

impl Engine {
    /// Takes host pages of one pool, all or none.
    pub fn host_alloc(&self, pool: u32, pages: &mut [HostPage]) -> Result<()> {
        let take = sys::hicache_host_take_t { pool, page_count: pages.len() as u32, hpages: pages.as_mut_ptr().cast() };
        call!(self, "host alloc", hicache_host_alloc, &take, 1).map(drop)
    }

    /// Gives host pages back.
    pub fn host_free(&self, pool: u32, pages: &[HostPage]) -> Result<()> {
        let free = sys::hicache_host_pages_t { pool, page_count: pages.len() as u32, hpages: pages.as_ptr().cast() };
        call!(self, "host free", hicache_host_free, &free, 1).map(drop)
    }

    /// Leases host pages and shows their bytes.
    ///
    /// # Safety
    /// No other view of a page is written, and no transfer touches it, while this one is read or written.
    pub unsafe fn host_view(&self, pool: u32, pages: &[HostPage]) -> Result<HostView<'_>> {
        let page_bytes = self.pool_info(sys::HICACHE_TIER_HOST, pool)?.page_bytes as usize;
        let raw = sys::hicache_host_pages_t { pool, page_count: pages.len() as u32, hpages: pages.as_ptr().cast() };
        let mut addresses: Vec<*mut u8> = vec![ptr::null_mut(); pages.len()];
        let mut id = 0;
        call!(self, "host view", hicache_host_view, &raw, addresses.as_mut_ptr().cast(), &mut id)?;
        Ok(HostView { engine: self, id, addresses, page_bytes })
    }
}

impl HostView<'_> {
    pub fn page(&self, index: usize) -> Option<&[u8]> {
        let address = self.addresses[index];
        // SAFETY: leased while this guard lives; who else touches it is the promise of host_view's caller.
        (!address.is_null()).then(|| unsafe { std::slice::from_raw_parts(address, self.page_bytes) })
    }

    pub fn page_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        let address = self.addresses[index];
        // SAFETY: as page; the view is borrowed alone.
        (!address.is_null()).then(|| unsafe { std::slice::from_raw_parts_mut(address, self.page_bytes) })
    }
}

impl Drop for HostView<'_> {
    fn drop(&mut self) {
        // SAFETY: the engine is borrowed, so open. The id is ours.
        unsafe { (self.engine.api.hicache_lease_release)(self.engine.raw.as_ptr(), self.id, ptr::null_mut()) };
    }
}
