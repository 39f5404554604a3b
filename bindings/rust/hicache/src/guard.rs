//! What is held gives itself back when dropped. Guards borrow the engine: it cannot be closed under them.

use crate::engine::{call, Engine};
use crate::ids::{KernelId, PhysicalPage, VirtualPage};
use crate::transfer::{Ticket, Transfer};
use crate::{sys, Detail, Error, Result};
use std::fmt;
use std::ptr;

/// Pages taken but not named. Ends by exactly one of [`Reservation::load`] and cancel, which dropping it does.
pub struct Reservation<'e> {
    pub(crate) engine: &'e Engine,
    pub(crate) id: u64,
}

/// A load that was refused, with its reservation as it was. Turning it into an [`Error`] (as `?` does) cancels the reservation.
pub struct LoadRefused<'e> {
    pub error: Error,
    pub reservation: Reservation<'e>,
}

impl fmt::Debug for LoadRefused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl From<LoadRefused<'_>> for Error {
    fn from(refused: LoadRefused<'_>) -> Error {
        refused.error
    }
}

impl<'e> Reservation<'e> {
    /// Binds the reserved pages and queues their copies in one step. None if there was nothing to copy.
    pub fn load(self, transfer: &Transfer<'_>) -> std::result::Result<Option<Ticket>, LoadRefused<'e>> {
        let raw = transfer.raw(self.id);
        let mut ticket = 0;
        match call!(self.engine, "load", hicache_load, &raw, &mut ticket) {
            Ok(_) => {
                std::mem::forget(self); // Consumed by the library.
                Ok((ticket != 0).then_some(Ticket(ticket)))
            }
            Err(error) => Err(LoadRefused { error, reservation: self }),
        }
    }

    /// Gives the pages back, and says whether that went well.
    pub fn cancel(self) -> Result<()> {
        let (engine, id) = (self.engine, self.id);
        std::mem::forget(self);
        call!(engine, "cancel", hicache_cancel, id).map(drop)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        // SAFETY: the engine is borrowed, so open. The id is ours.
        unsafe { (self.engine.api.hicache_cancel)(self.engine.raw.as_ptr(), self.id, ptr::null_mut()) };
    }
}

/// One kernel id a page, or page_tokens a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Granularity {
    Page = sys::HICACHE_GRANULARITY_PAGE,
    Token = sys::HICACHE_GRANULARITY_TOKEN,
}

macro_rules! holder {
    ($(#[$doc:meta])* $name:ident, $release:ident, $end:ident, $op:literal) => {
        $(#[$doc])*
        pub struct $name<'e> {
            pub(crate) engine: &'e Engine,
            pub(crate) id: u64,
        }

        impl $name<'_> {
            /// Translates virtual pages of one pool; unmapped ones become the sink's id. Returns how many did. The ids are good while
            /// this guard lives.
            pub fn kernel_ids(&self, pool: u32, granularity: Granularity, pages: &[VirtualPage], out: &mut [KernelId]) -> Result<u32> {
                kernel_ids(self.engine, self.id, pool, granularity, pages, out)
            }

            /// Ends it, and says whether that went well.
            pub fn $end(self) -> Result<()> {
                let (engine, id) = (self.engine, self.id);
                std::mem::forget(self);
                call!(engine, $op, $release, id).map(drop)
            }

            /// Where pages are now, and stay while this guard lives.
            pub fn places(&self, pool: u32, pages: &[VirtualPage], out: &mut [PhysicalPage]) -> Result<()> {
                room("places", out.len(), pages.len())?;
                call!(self.engine, "inspect", hicache_inspect, pool, pages.as_ptr().cast(), pages.len() as u32, out.as_mut_ptr().cast())
                    .map(drop)
            }
        }

        impl Drop for $name<'_> {
            fn drop(&mut self) {
                // SAFETY: the engine is borrowed, so open. The id is ours.
                unsafe { (self.engine.api.$release)(self.engine.raw.as_ptr(), self.id, ptr::null_mut()) };
            }
        }
    };
}

holder!(/// Pages stay where they are while it lives.
    Lease, hicache_lease_release, release, "lease release");
holder!(/// An open unit of compute. Close (or drop) it once its kernels are enqueued.
    Step, hicache_step_close, close, "step close");

pub(crate) fn room(op: &'static str, have: usize, need: usize) -> Result<()> {
    if have >= need {
        return Ok(());
    }
    let message = format!("the output has room for {have}, need {need}");
    Err(Error::InvalidArgument(Box::new(Detail { op, message, ..Default::default() })))
}

fn kernel_ids(
    engine: &Engine,
    holder: u64,
    pool: u32,
    granularity: Granularity,
    pages: &[VirtualPage],
    out: &mut [KernelId],
) -> Result<u32> {
    let each = if granularity == Granularity::Token { engine.page_tokens(pool) } else { 1 };
    room("kernel ids", out.len(), pages.len() * each)?;
    let mut sinks = 0;
    call!(
        engine,
        "kernel ids",
        hicache_kernel_ids,
        holder,
        pool,
        granularity as u32,
        pages.as_ptr().cast(),
        pages.len() as u32,
        out.as_mut_ptr().cast(),
        &mut sinks
    )?;
    Ok(sinks)
}
