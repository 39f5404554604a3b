use crate::sys;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Backend {
    /// Byte-exact reference: "device" memory is host memory.
    Cpu = sys::HICACHE_BACKEND_CPU,
    /// Tables and accounting, no bytes.
    Null = sys::HICACHE_BACKEND_NULL,
    Cuda = sys::HICACHE_BACKEND_CUDA,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Role {
    Full = sys::HICACHE_ROLE_FULL,
    Swa = sys::HICACHE_ROLE_SWA,
    State = sys::HICACHE_ROLE_STATE,
}

/// A pool: pages of one size with one role.
#[derive(Clone, Debug)]
pub struct Pool {
    pub role: Role,
    /// Tokens in a page; 1 for STATE. Equal in all pools of an id group.
    pub page_tokens: u32,
    /// SWA only.
    pub window_tokens: u32,
    /// Global layer ids, strictly ascending.
    pub layer_ids: Vec<u32>,
    /// One layer's K and V row of a token; multiples of 16.
    pub k_row_bytes: u64,
    pub v_row_bytes: u64,
}

/// What [`Engine::open`](crate::Engine::open) opens. Start from [`Options::new`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of libhicache.so (feature `dlopen`); None: see [`sys::load`].
    pub library: Option<PathBuf>,
    pub backend: Backend,
    /// CUDA ordinal.
    pub device: i32,
    pub device_bytes: u64,
    /// 0: no host tier.
    pub host_bytes: u64,
    pub pools: Vec<Pool>,
    /// HICACHE_COMPACTION_*.
    pub compaction: u32,
}

impl Options {
    pub fn new(backend: Backend, device_bytes: u64, host_bytes: u64, pools: Vec<Pool>) -> Options {
        Options { library: None, backend, device: 0, device_bytes, host_bytes, pools, compaction: sys::HICACHE_COMPACTION_LAZY }
    }

    pub(crate) fn raw_pools(&self) -> Vec<sys::hicache_pool_options_t> {
        self.pools
            .iter()
            .map(|pool| sys::hicache_pool_options_t {
                role: pool.role as u32,
                page_tokens: pool.page_tokens,
                window_tokens: pool.window_tokens,
                layer_count: pool.layer_ids.len() as u32,
                layer_ids: pool.layer_ids.as_ptr(),
                k_row_bytes: pool.k_row_bytes,
                v_row_bytes: pool.v_row_bytes,
                ..Default::default()
            })
            .collect()
    }

    /// `pools` is borrowed by the result.
    pub(crate) fn raw(&self, pools: &[sys::hicache_pool_options_t]) -> sys::hicache_options_t {
        sys::hicache_options_t {
            abi_version: sys::HICACHE_ABI_MAJOR << 16 | sys::HICACHE_ABI_MINOR,
            backend: self.backend as u32,
            device: self.device,
            device_bytes: self.device_bytes,
            host_bytes: self.host_bytes,
            pools: pools.as_ptr(),
            pool_count: pools.len() as u32,
            pool_stride_bytes: std::mem::size_of::<sys::hicache_pool_options_t>() as u32,
            compaction: self.compaction,
            ..Default::default()
        }
    }
}
