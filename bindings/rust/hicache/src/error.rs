use crate::sys;
use std::fmt;

pub type Result<T> = std::result::Result<T, Error>;

/// What the library says about a failure.
#[derive(Clone, Debug, Default)]
pub struct Detail {
    pub op: &'static str,
    /// Pool concerned, if any.
    pub pool: Option<u32>,
    /// Bytes needed, to be had, and coming back by themselves; 0 if not about room.
    pub need_bytes: u64,
    pub have_bytes: u64,
    pub pending_bytes: u64,
    /// CUresult or errno; 0 if neither.
    pub native_code: i32,
    pub message: String,
}

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $status:ident,)*) => {
        /// Why a call failed: one variant a status.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub enum Error {
            $($(#[$doc])* $name(Box<Detail>),)*
            /// No usable library; the text lists every path tried.
            NoLibrary(String),
            /// A status that this crate does not know.
            Unknown(i32, Box<Detail>),
        }

        impl Error {
            pub(crate) fn from_status(status: i32, detail: Detail) -> Error {
                match status {
                    $(sys::$status => Error::$name(Box::new(detail)),)*
                    other => Error::Unknown(other, Box::new(detail)),
                }
            }

            /// The library's account, if the error came from it.
            pub fn detail(&self) -> Option<&Detail> {
                match self {
                    $(Error::$name(detail) => Some(detail),)*
                    Error::Unknown(_, detail) => Some(detail),
                    Error::NoLibrary(_) => None,
                }
            }

            fn name(&self) -> &'static str {
                match self {
                    $(Error::$name(_) => stringify!($name),)*
                    Error::Unknown(..) => "Unknown",
                    Error::NoLibrary(_) => "NoLibrary",
                }
            }
        }
    };
}

errors! {
    InvalidArgument = HICACHE_INVALID_ARGUMENT,
    Unsupported = HICACHE_UNSUPPORTED,
    AbiMismatch = HICACHE_ABI_MISMATCH,
    /// Does not fit now.
    NoCapacity = HICACHE_NO_CAPACITY,
    /// Would fit if pinned pages could move.
    MovesBlocked = HICACHE_MOVES_BLOCKED,
    Busy = HICACHE_BUSY,
    /// Can never fit.
    Infeasible = HICACHE_INFEASIBLE,
    Closed = HICACHE_CLOSED,
    Limit = HICACHE_LIMIT,
    StaleId = HICACHE_STALE_ID,
    NotMapped = HICACHE_NOT_MAPPED,
    Device = HICACHE_DEVICE,
    Corrupt = HICACHE_CORRUPT,
    Cancelled = HICACHE_CANCELLED,
    Internal = HICACHE_INTERNAL,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoLibrary(text) => f.write_str(text),
            _ => {
                let detail = self.detail().expect("every other variant has one");
                write!(f, "hicache {}: {}: {}", detail.op, self.name(), detail.message)
            }
        }
    }
}

impl std::error::Error for Error {}

/// An error structure on its way to C.
pub(crate) struct ErrorOut(pub sys::hicache_error_t);

impl ErrorOut {
    pub fn new() -> ErrorOut {
        ErrorOut(sys::hicache_error_t::default())
    }

    /// The status of a call as a result; PENDING (1) and OK (0) are not errors.
    pub fn check(&self, op: &'static str, status: i32) -> Result<i32> {
        if status >= 0 {
            return Ok(status);
        }
        let raw = &self.0;
        let bytes: Vec<u8> = raw.message.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
        Err(Error::from_status(
            status,
            Detail {
                op,
                pool: (raw.pool != sys::HICACHE_NO_POOL).then_some(raw.pool),
                need_bytes: raw.need_bytes,
                have_bytes: raw.have_bytes,
                pending_bytes: raw.pending_bytes,
                native_code: raw.native_code,
                message: String::from_utf8_lossy(&bytes).into_owned(),
            },
        ))
    }
}
