use crate::ids::{HostPage, VirtualPage};
use crate::sys;

/// A transfer's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// How far a transfer is: global layer ids below `layers_done` have arrived.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub done: bool,
    pub layers_done: u32,
}

/// The end of a transfer, as the ring reports it.
pub type Completion = sys::hicache_completion_t;

/// One copy between tiers.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Copy(sys::hicache_copy_t);

impl Copy {
    pub fn new(pool: u32, device_page: VirtualPage, host_page: HostPage) -> Copy {
        Copy(sys::hicache_copy_t { pool, device_page: device_page.0, host_page: host_page.0, reserved0: 0 })
    }
}

/// A virtual page that gets a page of the reservation without a copy.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Bind(sys::hicache_bind_t);

impl Bind {
    pub fn new(pool: u32, page: VirtualPage) -> Bind {
        Bind(sys::hicache_bind_t { pool, vpage: page.0 })
    }
}

/// What a load or a back-up does.
#[derive(Clone, Copy, Default)]
pub struct Transfer<'a> {
    /// HICACHE_CLASS_*.
    pub priority: u32,
    pub copies: &'a [Copy],
    /// Load only.
    pub binds: &'a [Bind],
    /// CUDA: the stream whose work so far the copy must follow.
    pub stream: u64,
    /// Returned in the completion.
    pub user: u64,
}

impl Transfer<'_> {
    pub(crate) fn raw(&self, reservation: u64) -> sys::hicache_transfer_t {
        sys::hicache_transfer_t {
            priority: self.priority,
            reservation,
            copies: self.copies.as_ptr().cast(),
            copy_count: self.copies.len() as u32,
            binds: self.binds.as_ptr().cast(),
            bind_count: self.binds.len() as u32,
            stream: self.stream,
            user: self.user,
            ..Default::default()
        }
    }
}
