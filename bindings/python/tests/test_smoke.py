"""The main verbs on the CPU backend: pages go to the host tier and come back elsewhere with the same bytes."""

import unittest

import hicache
from hicache import Take, abi

try:
    import numpy
except ImportError:
    numpy = None

FULL, SWA, PAGES = 0, 1, 4


def engine(**fields):
    options = dict(backend=hicache.CPU, device_bytes=64 << 10, host_bytes=64 << 10)
    options.update(fields)
    return hicache.Engine(
        pools=[
            hicache.Pool(hicache.FULL, [0, 2], 32, 32, page_tokens=4),
            hicache.Pool(hicache.SWA, [1, 3], 32, 32, page_tokens=4, window_tokens=8),
        ],
        **options,
    )


def stamp(pool, page, size):
    return bytes((pool * 131 + page * 31 + at * 7 + at // 256) % 256 for at in range(size))


def device_bytes(e, lease, pool, page):
    """The bytes of a held page, found through its kernel id as a kernel would."""
    info = e.pool_info(hicache.DEVICE_TIER, pool)
    (kernel_id,) = lease.kernel_ids(pool, [page])
    place = (kernel_id - info.kernel_page_offset) // info.kernel_page_scale
    assert e.inspect(pool, [page]) == [place]
    return e.device_page(pool, place)


def drain(e, ticket):
    while True:
        completions = e.wait(10)
        assert completions, "no completion in 10 s"
        for completion in completions:
            assert completion.status == abi.HICACHE_OK
            if completion.ticket == ticket:
                return completion


class Smoke(unittest.TestCase):
    def test_round_trip(self):
        with engine() as e:
            pages, _ = e.alloc([Take(FULL, PAGES), Take(SWA, PAGES)])
            with e.lease([(FULL, pages), (SWA, pages)]) as lease:
                for pool in (FULL, SWA):
                    for i, page in enumerate(pages):
                        view = device_bytes(e, lease, pool, page)
                        view[:] = stamp(pool, i, len(view))
            host = [e.host_alloc(pool, PAGES) for pool in (FULL, SWA)]
            copies = [(pool, pages[i], host[pool][i]) for pool in (FULL, SWA) for i in range(PAGES)]
            ticket = e.back_up(copies, priority=abi.HICACHE_CLASS_NORMAL, user=7)
            completion = drain(e, ticket)
            self.assertEqual((completion.user, completion.page_count, completion.direction), (7, 2 * PAGES, abi.HICACHE_D2H))
            for pool in (FULL, SWA):
                with e.host_view(pool, host[pool]) as view:
                    for i, page in enumerate(view.pages):
                        self.assertEqual(page, stamp(pool, i, len(page)))
            e.free([(FULL, pages)])
            with self.assertRaises(hicache.StaleId):
                e.free([(FULL, pages)])
            e.alloc([Take(FULL, 2), Take(SWA, 2)])  # Takes old places and zeroes them.

            with e.reserve([Take(FULL, PAGES), Take(SWA, PAGES)]) as reservation:
                back = reservation.pages[0]
                ticket = reservation.load([(pool, back[i], host[pool][i]) for pool in (FULL, SWA) for i in range(PAGES)])
            for layer in range(4):
                e.layer_wait(ticket, layer)
            self.assertTrue(e.progress(ticket)[1] >= 4)
            drain(e, ticket)
            with e.lease([(FULL, back), (SWA, back)]) as lease:
                self.assertEqual(len(lease.kernel_ids(FULL, back, token=True)), PAGES * 4)
                for pool in (FULL, SWA):
                    for i, page in enumerate(back):
                        view = device_bytes(e, lease, pool, page)
                        self.assertEqual(view, stamp(pool, i, len(view)))
                with self.assertRaises(hicache.Busy):
                    e.close()
            e.compact()
            e.verify()
            stats = e.stats()
            self.assertEqual((stats["loads"], stats["back_ups"], stats["leases"]), (1, 1, 0))
        e.close()
        with self.assertRaises(hicache.Closed):
            e.stats()

    def test_guards(self):
        with engine() as e:
            with e.reserve([Take(FULL, 2)]):
                pass
            self.assertEqual(e.stats()["cancels"], 1)
            (pages,) = e.alloc([Take(FULL, 2)])
            with e.lease([(FULL, pages)]), e.step([(FULL, pages)]) as step:
                step.kernel_ids(FULL, pages)
                self.assertEqual((e.stats()["leases"], e.stats()["steps"]), (1, 1))
            self.assertEqual((e.stats()["leases"], e.stats()["steps"]), (0, 0))
            with e.reserve([Take(FULL, 1)]) as reservation:
                with self.assertRaises(hicache.HicacheError):
                    reservation.load(binds=[(FULL, 1000000)])
            self.assertEqual(e.stats()["cancels"], 2)
            e.verify()

    def test_errors(self):
        with self.assertRaises(hicache.InvalidArgument) as caught:
            hicache.Engine(hicache.CPU, 1 << 16, [hicache.Pool(hicache.FULL, [0], 8, page_tokens=4)])
        self.assertIn("k_row_bytes", caught.exception.message)
        with engine() as e:
            with self.assertRaises(hicache.NoCapacity) as caught:
                e.alloc([Take(FULL, 100000)])
            self.assertGreater(caught.exception.need_bytes, caught.exception.have_bytes)
            with self.assertRaises(hicache.NoCapacity):
                e.fits([(FULL, 100000)])
            e.fits([(FULL, 1), (SWA, 1)])

    def test_map(self):
        with engine() as e:
            (pages,) = e.alloc([Take(FULL, 3)])
            with e.lease([(FULL, pages[:1])]):
                states = e.map(hicache.DEVICE_TIER, FULL)
            self.assertEqual(len(states), e.pool_info(hicache.DEVICE_TIER, FULL).page_count)
            live = abi.HICACHE_PAGE_LIVE
            self.assertEqual((states.count(live | abi.HICACHE_PAGE_PINNED), states.count(live)), (1, 2))
            with self.assertRaises(hicache.InvalidArgument):
                e.map(7, FULL)
            e.free([(FULL, pages)])

    @unittest.skipIf(numpy is None, "SKIPPED: numpy is not installed, its views are not tested")
    def test_numpy(self):
        with engine() as e:
            (pages,) = e.alloc([Take(FULL, 1)])
            with e.lease([(FULL, pages)]):
                (place,) = e.inspect(FULL, pages)
                array = e.device_array(FULL, place)
                array[:] = numpy.arange(array.size, dtype=numpy.uint8)
                self.assertEqual(bytes(e.device_page(FULL, place)), array.tobytes())
            host = e.host_alloc(FULL, 1)
            with e.host_view(FULL, host) as view:
                view.arrays()[0][:] = 5
                self.assertEqual(bytes(view.pages[0]), b"\5" * len(view.pages[0]))

    def test_numbers_beyond_32_bits(self):
        with engine() as e:
            for bad in (-1, 1 << 32):
                for call in (
                    lambda: e.alloc([Take(bad, 1)]),
                    lambda: e.alloc([Take(FULL, bad)]),
                    lambda: e.alloc([Take(SWA, 1, [bad])]),
                    lambda: e.free([(FULL, [bad])]),
                    lambda: e.free([(bad, [1])]),
                    lambda: e.inspect(FULL, [bad]),
                    lambda: e.host_alloc(FULL, bad),
                    lambda: e.host_free(FULL, [bad]),
                ):
                    with self.assertRaises(ValueError):
                        call()
            e.verify()

    def test_misspelt_fields(self):
        with self.assertRaises(TypeError):
            hicache.Pool(abi.HICACHE_ROLE_FULL, [0], 16, zeroing_mode=1)
        with self.assertRaises(TypeError):
            engine(compactoin=0)
        with engine() as e, self.assertRaises(TypeError):
            e.back_up([], prioritty=1)

    def test_wait_is_bounded(self):
        with engine() as e:
            self.assertEqual(e.wait(0), [])
            for timeout in (-1, -1e-9, float("nan")):
                with self.assertRaises(ValueError):
                    e.wait(timeout)


if __name__ == "__main__":
    unittest.main()
