"""One exception a status."""

from . import _abi as abi


class HicacheError(Exception):
    """A call of the library failed.

    op: the call; pool: the pool concerned or None; need_bytes, have_bytes, pending_bytes: 0 if not about room; native_code: CUresult or
    errno, 0 if neither; message: the library's sentence.
    """

    status = 0

    def __init__(self, op, message, pool=None, need_bytes=0, have_bytes=0, pending_bytes=0, ticket=0, native_code=0, status=None):
        self.op, self.message, self.pool = op, message, pool
        self.need_bytes, self.have_bytes, self.pending_bytes = need_bytes, have_bytes, pending_bytes
        self.ticket, self.native_code = ticket, native_code
        if status is not None:
            self.status = status
        super().__init__(f"hicache {op}: {abi.STATUS_NAMES.get(self.status, self.status)}: {message}")


class InvalidArgument(HicacheError):
    status = abi.HICACHE_INVALID_ARGUMENT


class Unsupported(HicacheError):
    status = abi.HICACHE_UNSUPPORTED


class AbiMismatch(HicacheError):
    status = abi.HICACHE_ABI_MISMATCH


class NoCapacity(HicacheError):
    """Does not fit now."""

    status = abi.HICACHE_NO_CAPACITY


class MovesBlocked(HicacheError):
    """Would fit if pinned pages could move."""

    status = abi.HICACHE_MOVES_BLOCKED


class Busy(HicacheError):
    status = abi.HICACHE_BUSY


class Infeasible(HicacheError):
    """Can never fit."""

    status = abi.HICACHE_INFEASIBLE


class Closed(HicacheError):
    status = abi.HICACHE_CLOSED


class Limit(HicacheError):
    status = abi.HICACHE_LIMIT


class StaleId(HicacheError):
    status = abi.HICACHE_STALE_ID


class NotMapped(HicacheError):
    status = abi.HICACHE_NOT_MAPPED


class DeviceFailed(HicacheError):
    status = abi.HICACHE_DEVICE


class Corrupt(HicacheError):
    status = abi.HICACHE_CORRUPT


class Cancelled(HicacheError):
    status = abi.HICACHE_CANCELLED


class Internal(HicacheError):
    status = abi.HICACHE_INTERNAL


class NoLibrary(Exception):
    """No usable library; the text lists every path tried and why it was not used."""


_BY_STATUS = {cls.status: cls for cls in HicacheError.__subclasses__()}


def check(op, status, error):
    """Raises for a negative status; else returns it (PENDING is 1)."""
    if status >= 0:
        return status
    cls = _BY_STATUS.get(status, HicacheError)
    raise cls(
        op,
        error.message.decode("utf-8", "replace"),
        pool=None if error.pool == abi.HICACHE_NO_POOL else error.pool,
        need_bytes=error.need_bytes,
        have_bytes=error.have_bytes,
        pending_bytes=error.pending_bytes,
        ticket=error.ticket,
        native_code=error.native_code,
        status=status,
    )
