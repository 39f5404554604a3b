//! HiCache: a tiered KV-cache memory manager for LLM inference servers.
//!
//! This crate is a thin safe layer over libhicache: ids of each space have a type, what is held is a guard that gives itself back, and a
//! status is an [`Error`]. The main verbs are [`Engine::alloc`] and [`Engine::free`], [`Engine::reserve`] then [`Reservation::load`],
//! [`Engine::back_up`], [`Engine::lease`] with [`Lease::kernel_ids`], and [`Engine::layer_wait`]. What is not wrapped is reachable through
//! [`Engine::raw`] and the crate [`sys`].
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod engine;
mod error;
mod guard;
mod host;
mod ids;
mod options;
mod transfer;

pub use engine::{Engine, Pages, Take};
pub use error::{Detail, Error, Result};
pub use guard::{Granularity, Lease, LoadRefused, Reservation, Step};
pub use host::HostView;
pub use ids::{HostPage, KernelId, PhysicalPage, VirtualPage};
pub use options::{Backend, Options, Pool, Role};
pub use transfer::{Bind, Completion, Copy, Progress, Ticket, Transfer};

pub use hicache_sys as sys;
