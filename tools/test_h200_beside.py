"""The transfers that h200_interference.py switches on and off, over the simulated driver. HICACHE_BENCH_LIBRARY and HICACHE_LIBCUDA name the libraries."""
import ctypes
import os
import time
import unittest


class Beside(unittest.TestCase):
    def test_every_kind_starts_and_stops(self):
        path = os.environ.get("HICACHE_BENCH_LIBRARY")
        if not path or not os.environ.get("HICACHE_LIBCUDA"):
            self.skipTest("NOT TESTED: HICACHE_BENCH_LIBRARY or HICACHE_LIBCUDA is not set; make test-device sets both")
        bench = ctypes.CDLL(path)
        bench.bench_stop.restype = ctypes.c_double
        self.assertEqual(bench.bench_open(), 0)
        for kind in range(9):
            for attempt in range(1, 21):  # A busy machine may give its threads no time in the first window.
                bench.bench_start(kind)
                time.sleep(0.1 * attempt)
                rates = [bench.bench_stop(1 if kind in (1, 6, 8) else 0)]
                if kind == 2:
                    rates.append(bench.bench_stop(1))
                if min(rates) > 0:
                    break
            self.assertGreater(min(rates), 0, f"kind {kind}")


if __name__ == "__main__":
    unittest.main()
