"""HiCache: a tiered KV-cache memory manager for LLM inference servers.

A ctypes binding of libhicache. What is held (a lease, a reservation, a step, a host view) is a context manager that gives itself back; a
status is an exception. Pages are ints, as the header names them: virtual pages, host pages and kernel ids are three spaces, do not mix them.

    with hicache.Engine(backend=hicache.CPU, device_bytes=1 << 20, host_bytes=1 << 20, pools=[...]) as engine:
        (pages,) = engine.alloc([hicache.Take(0, 4)])
        with engine.lease([(0, pages)]) as lease:
            ids = lease.kernel_ids(0, pages)
"""

from . import _abi as abi
from ._engine import Completion, Engine, Lease, Pool, Reservation, Step, Take
from ._errors import (
    AbiMismatch,
    Busy,
    Cancelled,
    Closed,
    Corrupt,
    DeviceFailed,
    HicacheError,
    Infeasible,
    Internal,
    InvalidArgument,
    Limit,
    MovesBlocked,
    NoCapacity,
    NoLibrary,
    NotMapped,
    StaleId,
    Unsupported,
)
from ._host import HostView
from ._library import Library, load
from ._tensor import LayerTensor

FULL = abi.HICACHE_ROLE_FULL
SWA = abi.HICACHE_ROLE_SWA
STATE = abi.HICACHE_ROLE_STATE
CPU = abi.HICACHE_BACKEND_CPU
NULL = abi.HICACHE_BACKEND_NULL
CUDA = abi.HICACHE_BACKEND_CUDA
DEVICE_TIER = abi.HICACHE_TIER_DEVICE
HOST_TIER = abi.HICACHE_TIER_HOST

__version__ = "0.1.0"
