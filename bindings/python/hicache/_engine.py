"""The engine and its guards."""

import ctypes
from collections import namedtuple
from ctypes import byref, c_int32, c_uint8, c_uint32, c_uint64, c_void_p

from . import _abi as abi
from ._errors import Closed, InvalidArgument, check
from ._host import HostView, array_of, bytes_at
from ._library import load
from ._tensor import LayerTensor

Take = namedtuple("Take", "pool count pages", defaults=(0, None))
Take.__doc__ = """One line of a demand: `count` new pages of an id-owning pool; or, in an SWA pool, window pages for the virtual pages `pages`, or
for the last `count` pages that the same call takes of the owner."""

Completion = namedtuple("Completion", "ticket status native_code direction page_count bytes submit_ns start_ns end_ns user")
Completion.__doc__ = """The end of a transfer: status 0, or why it failed."""


_FOREVER_S = 1e9  # fits the library's 64 bits of nanoseconds


class Pool:
    """A pool: pages of one size with one role (FULL, SWA, STATE). Further fields of hicache_pool_options_t go in by name."""

    def __init__(self, role, layer_ids, k_row_bytes, v_row_bytes=0, page_tokens=1, window_tokens=0, **fields):
        self.role, self.page_tokens = role, page_tokens
        self._layers = (c_uint32 * len(layer_ids))(*layer_ids)
        self._raw = abi.hicache_pool_options_t(
            role=role,
            page_tokens=page_tokens,
            window_tokens=window_tokens,
            layer_count=len(layer_ids),
            layer_ids=self._layers,
            k_row_bytes=k_row_bytes,
            v_row_bytes=v_row_bytes,
            **_known(abi.hicache_pool_options_t, fields),
        )


def _known(structure, fields):
    """fields, if the structure has all of them: ctypes would keep a misspelt one to itself."""
    unknown = set(fields) - {name for name, *_ in structure._fields_}
    if unknown:
        raise TypeError(f"{structure.__name__} has no field {', '.join(sorted(unknown))}")
    return fields


def _words(what, values):
    """values as the library's 32 bits: ctypes would cut others down to numbers that mean something else."""
    if len(values) and not (min(values) >= 0 and max(values) < 1 << 32):
        raise ValueError(f"{what} must be 0 to 2**32 - 1, has {min(values)} to {max(values)}")
    return (c_uint32 * len(values))(*values)


def _pages(lines):
    """An array of hicache_pages_t of (pool, pages) lines, which keeps the ids alive."""
    out = (abi.hicache_pages_t * len(lines))()
    for raw, (pool, pages) in zip(out, lines):
        raw.pool, raw.page_count, raw.vpages = _words("pool", (pool,))[0], len(pages), _words("page", pages)
    return out


class Engine:
    """An open engine. Any thread may use it. Close it, or use it as a context manager.

    Further fields of hicache_options_t go in by name (compaction, ticket_max, fault, ...). library: a Library, or the path of one.
    """

    def __init__(self, backend, device_bytes, pools, host_bytes=0, library=None, **fields):
        self._library = library if hasattr(library, "abi_version") else load(library)
        raw_pools = (abi.hicache_pool_options_t * len(pools))(*[pool._raw for pool in pools])
        options = abi.hicache_options_t(
            abi_version=abi.HICACHE_ABI_MAJOR << 16 | abi.HICACHE_ABI_MINOR,
            backend=backend,
            device_bytes=device_bytes,
            host_bytes=host_bytes,
            pools=raw_pools,
            pool_count=len(pools),
            pool_stride_bytes=ctypes.sizeof(abi.hicache_pool_options_t),
            **_known(abi.hicache_options_t, fields),
        )
        handle, error = c_void_p(), abi.hicache_error_t()
        self._handle = None
        check("open", self._library.open(byref(options), byref(handle), byref(error)), error)
        self._handle, self._backend = handle, backend
        self._device = fields.get("device", 0)
        self._pools = [(pool.role, pool.page_tokens) for pool in pools]
        self._shapes = [(len(pool._layers), pool._raw.k_row_bytes, pool._raw.v_row_bytes) for pool in pools]

    def _call(self, op, function, *arguments):
        if self._handle is None:
            raise Closed(op, "the engine is closed")
        error = abi.hicache_error_t()
        return check(op, getattr(self._library, function)(self._handle, *arguments, byref(error)), error)

    def close(self):
        """Closes the engine, blocking until submitted transfers have ended. Busy while anything is held. No other thread may be inside
        the engine. A second close does nothing."""
        if self._handle is not None:
            self._call("close", "close")
            self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # Taking and giving back.

    def _takes(self, takes):
        """The raw lines and, for each, where its ids are (None where the library names none)."""
        raw, ids = (abi.hicache_take_t * len(takes))(), []
        for line, take in zip(raw, takes):
            line.pool = take.pool
            swa = take.pool < len(self._pools) and self._pools[take.pool][0] == abi.HICACHE_ROLE_SWA
            if take.pages is not None:
                array = _words("page", take.pages)
            else:
                _words("pool and count", (take.pool, take.count))
                array = None if swa else (c_uint32 * take.count)()
            line.page_count = take.count if array is None else len(array)
            if array is not None:
                line.vpages = array
            ids.append(array)
        return raw, ids

    def alloc(self, takes):
        """Takes pages of all lines or none. Returns the ids of each line ([] for an SWA line by count)."""
        raw, ids = self._takes(takes)
        self._call("alloc", "alloc", raw, len(raw))
        return [list(array or ()) for array in ids]

    def free(self, lines):
        """Gives (pool, pages) lines back. Never waits."""
        raw = _pages(lines)
        self._call("free", "free", raw, len(raw))

    def reserve(self, takes):
        """Takes pages that are named by the reservation's load; leaving its `with` without a load cancels it."""
        raw, ids = self._takes(takes)
        reservation = c_uint64()
        self._call("reserve", "reserve", raw, len(raw), byref(reservation))
        return Reservation(self, reservation.value, [list(array or ()) for array in ids])

    # Transfers. A copy is (pool, virtual page, host page), a bind is (pool, virtual page).

    def _transfer(self, op, function, copies, binds, fields):
        raw_copies = (abi.hicache_copy_t * len(copies))(*copies)
        raw_binds = (abi.hicache_bind_t * len(binds))(*binds)
        fields = _known(abi.hicache_transfer_t, fields)
        raw = abi.hicache_transfer_t(copies=raw_copies, copy_count=len(copies), binds=raw_binds, bind_count=len(binds), **fields)
        ticket = c_uint64()
        self._call(op, function, byref(raw), byref(ticket))
        return ticket.value

    def back_up(self, copies, **fields):
        """Queues device-to-host copies; returns the ticket. Fields of hicache_transfer_t (priority, stream, after, user) go in by name."""
        return self._transfer("back up", "back_up", copies, (), fields)

    def layer_wait(self, ticket, layer, stream=0):
        """Makes a stream wait until a global layer has arrived; on the CPU and null backends blocks."""
        self._call("layer wait", "layer_wait", ticket, layer, stream)

    def progress(self, ticket):
        """(done, layers_done): global layer ids below layers_done have arrived."""
        layers = c_uint32()
        status = self._call("ticket status", "ticket_status", ticket, byref(layers))
        return status == abi.HICACHE_OK, layers.value

    def _completions(self, op, function, capacity, *arguments):
        raw, count = (abi.hicache_completion_t * capacity)(), c_uint32()
        self._call(op, function, *arguments, raw, capacity, byref(count))
        return [Completion(*[getattr(one, name) for name in Completion._fields]) for one in raw[: count.value]]

    def poll(self, capacity=64):
        """Finished transfers, oldest first. Never blocks."""
        return self._completions("completion poll", "completion_poll", capacity)

    def wait(self, timeout_s, capacity=64):
        """As poll, but blocks until there is one or the timeout has passed; ValueError for a timeout below 0."""
        if not timeout_s >= 0:  # nor NaN: the library's nanoseconds have no sign
            raise ValueError(f"timeout_s is {timeout_s}, must not be negative")
        return self._completions("completion wait", "completion_wait", capacity, int(min(timeout_s, _FOREVER_S) * 1e9))

    # Leases, steps, places.

    def lease(self, lines):
        """Keeps the pages of (pool, pages) lines where they are."""
        raw, lease = _pages(lines), c_uint64()
        self._call("lease acquire", "lease_acquire", raw, len(raw), byref(lease))
        return Lease(self, lease.value)

    def step(self, lines, stream=0):
        """Opens a unit of compute over the pages of (pool, pages) lines."""
        raw, step = _pages(lines), c_uint64()
        self._call("step open", "step_open", stream, raw, len(raw), byref(step))
        return Step(self, step.value)

    def inspect(self, pool, pages):
        """Physical pages now, None where unmapped."""
        out = (c_uint32 * len(pages))()
        self._call("inspect", "inspect", pool, _words("page", pages), len(pages), out)
        return [None if page == abi.HICACHE_NO_PAGE else page for page in out]

    def device_page(self, pool, physical_page):
        """The bytes of a device page of the CPU backend, as a writable memoryview. Touch it only while a lease or step holds the page."""
        info = self.pool_info(abi.HICACHE_TIER_DEVICE, pool)
        if self._backend != abi.HICACHE_BACKEND_CPU or not 0 <= physical_page < info.page_count:
            raise InvalidArgument("device page", f"page {physical_page} of {info.page_count} has no bytes in host memory")
        return bytes_at(info.arena_base + physical_page * info.page_bytes, info.page_bytes)

    def device_array(self, pool, physical_page):
        """As device_page, as a numpy array of uint8."""
        return array_of(self.device_page(pool, physical_page))

    def _rows(self, pool, part):
        layers, k_row_bytes, v_row_bytes = self._shapes[pool]
        return layers, k_row_bytes if part == "k" else v_row_bytes, self._pools[pool][1]

    def layer_tensor(self, pool, layer, part="k", dtype="uint8"):
        """The K or V rows of the pool's `layer`-th layer on the device as a LayerTensor, which torch, CuPy and numpy take as it is
        (torch.from_dlpack, cupy.asarray, numpy.asarray). dtype: uint8, int8, float16, bfloat16 or float32."""
        if not 0 <= pool < len(self._shapes):
            raise InvalidArgument("layer tensor", f"pool {pool} of {len(self._shapes)}")
        return LayerTensor(self, pool, layer, part, dtype)

    # Capacity and compaction.

    def fits(self, demands):
        """Raises NoCapacity or MovesBlocked if a take of these (pool, pages) would fail now."""
        raw = (abi.hicache_demand_t * len(demands))(*demands)
        self._call("fits", "fits", raw, len(raw))

    def compact(self, tier=abi.HICACHE_TIER_DEVICE, pages_max=0, bytes_max=0, pool=abi.HICACHE_NO_POOL):
        budget = abi.hicache_compact_budget_t(tier=tier, pages_max=pages_max, bytes_max=bytes_max, pool=pool)
        result = abi.hicache_compact_result_t()
        self._call("compact", "compact", byref(budget), byref(result))
        return result

    # Host tier.

    def host_alloc(self, pool, count):
        """Takes host pages, all or none."""
        _words("pool and count", (pool, count))
        pages = (c_uint32 * count)()
        take = abi.hicache_host_take_t(pool=pool, page_count=count, hpages=pages)
        self._call("host alloc", "host_alloc", byref(take), 1)
        return list(pages)

    def _host_pages(self, pool, pages):
        return abi.hicache_host_pages_t(pool=pool, page_count=len(pages), hpages=_words("page", pages))

    def host_free(self, pool, pages):
        self._call("host free", "host_free", byref(self._host_pages(pool, pages)), 1)

    def host_view(self, pool, pages):
        """Leases host pages and shows their bytes."""
        size = self.pool_info(abi.HICACHE_TIER_HOST, pool).page_bytes
        addresses, lease = (c_void_p * len(pages))(), c_uint64()
        self._call("host view", "host_view", byref(self._host_pages(pool, pages)), addresses, byref(lease))
        return HostView(self, lease.value, [bytes_at(address, size) if address else None for address in addresses])

    # Looking inside.

    def pool_info(self, tier, pool):
        info = abi.hicache_pool_info_t()
        self._call("pool info", "pool_info", tier, pool, byref(info))
        return info

    def stats(self):
        """The engine's counters by name."""
        stats = abi.hicache_stats_t()
        self._call("stats", "stats", byref(stats))
        return {name: getattr(stats, name) for name, _ in stats._fields_ if name != "struct_size"}

    def map(self, tier, pool):
        """A snapshot of a pool's physical pages, one byte each: abi.HICACHE_PAGE_*, with HICACHE_PAGE_PINNED as a flag."""
        out = (c_uint8 * self.pool_info(tier, pool).page_count)()
        self._call("map", "map", tier, pool, 0, len(out), out)
        return bytes(out)

    def verify(self):
        """Recomputes every invariant; raises Internal with the first violation."""
        self._call("verify", "verify", None, 0)


class Reservation:
    """Pages taken but not bound. `pages` has the ids of each line."""

    def __init__(self, engine, reservation, pages):
        self._engine, self._id, self.pages = engine, reservation, pages

    def load(self, copies=(), binds=(), **fields):
        """Binds the pages and queues their host-to-device copies in one step; returns the ticket, 0 if there was nothing to copy. A refused
        load leaves the reservation as it was."""
        ticket = self._engine._transfer("load", "load", copies, binds, dict(fields, reservation=self._id))
        self._id = 0
        return ticket

    def cancel(self):
        if self._id:
            reservation, self._id = self._id, 0
            self._engine._call("cancel", "cancel", reservation)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cancel()


class _Holder:
    _op, _function = "", ""

    def __init__(self, engine, holder):
        self._engine, self._id = engine, holder

    def kernel_ids(self, pool, pages, token=False):
        """Kernel ids of virtual pages: one a page, or with token one a token. Unmapped pages give the sink's id. The ids are good while
        this is held."""
        engine = self._engine
        each = engine._pools[pool][1] if token else 1
        out = (c_int32 * (len(pages) * each))()
        granularity = abi.HICACHE_GRANULARITY_TOKEN if token else abi.HICACHE_GRANULARITY_PAGE
        engine._call("kernel ids", "kernel_ids", self._id, pool, granularity, _words("page", pages), len(pages), out, None)
        return list(out)

    def _end(self):
        if self._id:
            holder, self._id = self._id, 0
            self._engine._call(self._op, self._function, holder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._end()


class Lease(_Holder):
    """Pages stay where they are while it is held."""

    _op, _function = "lease release", "lease_release"

    def release(self):
        self._end()


class Step(_Holder):
    """An open unit of compute; close it once its kernels are enqueued."""

    _op, _function = "step close", "step_close"

    def close(self):
        self._end()
