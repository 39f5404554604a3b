"""Layers of a pool as tensors of other libraries. The GPU half runs where torch or CuPy sees one."""

import gc
import unittest

import hicache
from hicache import Take, _tensor, abi

try:
    import numpy
except ImportError:
    numpy = None

try:
    import torch
except ImportError:
    torch = None

try:
    import cupy
except ImportError:
    cupy = None

FULL, TOKENS, ROW = 0, 4, 32


def engine(backend=hicache.CPU, **fields):
    return hicache.Engine(
        backend=backend,
        device_bytes=fields.pop("device_bytes", 64 << 10),
        host_bytes=fields.pop("host_bytes", 64 << 10),
        pools=[hicache.Pool(hicache.FULL, [0, 2], ROW, 2 * ROW, page_tokens=TOKENS)],
        **fields,
    )


def place_of(e, lease, page):
    info = e.pool_info(hicache.DEVICE_TIER, FULL)
    (kernel_id,) = lease.kernel_ids(FULL, [page])
    return (kernel_id - info.kernel_page_offset) // info.kernel_page_scale


def row_at(info, place, layer, part, token):
    """The address of a row by the formula of hicache.h."""
    at = info.arena_base + place * info.page_bytes + layer * info.layer_stride_bytes
    return at + (token * info.token_stride_bytes if part == "k" else info.v_offset_bytes + token * info.v_token_stride_bytes)


@unittest.skipIf(numpy is None, "NOT TESTED: numpy is not installed")
class OnTheHost(unittest.TestCase):
    def test_a_row_is_where_the_header_says(self):
        with engine() as e:
            (pages,) = e.alloc([Take(FULL, 2)])
            info = e.pool_info(hicache.DEVICE_TIER, FULL)
            with e.lease([(FULL, pages)]) as lease:
                place = place_of(e, lease, pages[1])
                for layer in range(2):
                    for part, row in (("k", ROW), ("v", 2 * ROW)):
                        tensor = e.layer_tensor(FULL, layer, part)
                        self.assertEqual(tensor.shape, (info.page_count, TOKENS, row))
                        array = numpy.asarray(tensor)
                        array[place, 3] = numpy.arange(row) + layer
                        raw = hicache._host.bytes_at(row_at(info, place, layer, part, 3), row)
                        self.assertEqual(bytes(raw), bytes(range(layer, row + layer)))
                        self.assertTrue((numpy.from_dlpack(tensor) == array).all())
            e.free([(FULL, pages)])

    def test_types(self):
        with engine() as e:
            half = numpy.asarray(e.layer_tensor(FULL, 0, "k", "float16"))
            self.assertEqual((half.shape[2], half.dtype), (ROW // 2, numpy.float16))
            self.assertEqual(e.layer_tensor(FULL, 0, "k", "bfloat16").__dlpack_device__(), (1, 0))
            for wrong in (dict(dtype="complex64"), dict(part="q"), dict(layer=2), dict(layer=-1), dict(pool=1)):
                with self.assertRaises(hicache.InvalidArgument):
                    e.layer_tensor(**{"pool": FULL, "layer": 0, **wrong})

    def test_capsules_leave_nothing(self):
        with engine() as e:
            tensor = e.layer_tensor(FULL, 0)
            unused = tensor.__dlpack__()
            self.assertEqual(len(_tensor._live), 1)
            del unused
            array = numpy.from_dlpack(tensor)
            self.assertEqual(len(_tensor._live), 1)
            del array
            gc.collect()
            self.assertEqual(_tensor._live, {})
            with self.assertRaises(BufferError):
                tensor.__dlpack__(copy=True)
            with self.assertRaises(BufferError):
                tensor.__dlpack__(dl_device=(2, 0))

    def test_the_null_backend_has_no_bytes(self):
        with engine(backend=hicache.NULL) as e:
            with self.assertRaises(hicache.InvalidArgument):
                e.layer_tensor(FULL, 0)

    @unittest.skipIf(torch is None, "NOT TESTED: torch is not installed")
    def test_torch(self):
        with engine() as e:
            tensor = torch.from_dlpack(e.layer_tensor(FULL, 1, "v", "bfloat16"))
            self.assertEqual((tensor.dtype, tuple(tensor.shape[1:])), (torch.bfloat16, (TOKENS, ROW)))


class OnTheDevice(unittest.TestCase):
    """Writes rows with the other library on a stream of its own, and reads them back from the host tier."""

    def round_trip(self, write, stream):
        with engine(hicache.CUDA, device_bytes=64 << 20, host_bytes=64 << 20) as e:
            (pages,) = e.alloc([Take(FULL, 4)])
            host = e.host_alloc(FULL, 4)
            with e.lease([(FULL, pages)]) as lease:
                for i, page in enumerate(pages):
                    write(e.layer_tensor(FULL, 1, "k"), place_of(e, lease, page), i + 1)
                ticket = e.back_up([(FULL, page, target) for page, target in zip(pages, host)], stream=stream)
                while ticket is not None:
                    for completion in e.wait(10):
                        self.assertEqual(completion.status, abi.HICACHE_OK)
                        ticket = None
            info = e.pool_info(hicache.HOST_TIER, FULL)
            with e.host_view(FULL, host) as view:
                for i, page in enumerate(view.pages):
                    at = info.layer_stride_bytes
                    self.assertEqual(bytes(page[at : at + ROW]), bytes([i + 1] * ROW))
            e.host_free(FULL, host)
            e.free([(FULL, pages)])

    @unittest.skipIf(torch is None or not torch.cuda.is_available(), "NOT TESTED: torch sees no GPU")
    def test_torch(self):
        torch.cuda.init()
        stream = torch.cuda.Stream()

        def write(tensor, place, value):
            with torch.cuda.stream(stream):
                torch.from_dlpack(tensor)[place] = value

        self.round_trip(write, stream.cuda_stream)

    @unittest.skipIf(cupy is None, "NOT TESTED: CuPy is not installed")
    def test_cupy(self):
        stream = cupy.cuda.Stream(non_blocking=True)

        def write(tensor, place, value):
            with stream:
                cupy.asarray(tensor)[place] = value

        self.round_trip(write, stream.ptr)


if __name__ == "__main__":
    unittest.main()
