//! One type an id space, so that a mix-up does not compile.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $raw:ty) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $raw);
    };
}

id!(/// Stable name of a device page for its lifetime; says nothing about where its bytes are.
    VirtualPage, u32);
id!(/// Where a device page sits now; valid only while something pins it.
    PhysicalPage, u32);
id!(/// What attention kernels index with; valid under a lease or in an open step.
    KernelId, i32);
id!(/// Stable name of a page of the host tier.
    HostPage, u32);
