"""python3 -m unittest discover -s tools"""
import json
import pathlib
import tempfile
import unittest

import h200_report

NCU_LONG = '''==PROF== Connected to process 7
{"work": "kernel launched", "kernel": "hicache_page_move", "what": "pages of 32 KiB", "bytes": 64}
{"work": "kernel launched", "kernel": "hicache_page_move", "what": "pages of 2 MiB", "bytes": 64}
{"work": "kernel launched", "kernel": "hicache_page_zero", "what": "pages of 2 MiB", "bytes": 32}
"ID","Process ID","Process Name","Kernel Name","Block Size","Grid Size","Metric Name","Metric Unit","Metric Value"
"0","7","bench","hicache_page_move(CopyArgs)","(512, 1, 1)","(1, 1, 1)","gpu__time_duration.sum","ns","1,000"
"1","7","bench","hicache_page_move(CopyArgs)","(512, 1, 1)","(4224, 1, 1)","gpu__time_duration.sum","ns","140,512"
"1","7","bench","hicache_page_move(CopyArgs)","(512, 1, 1)","(4224, 1, 1)","dram__bytes.sum.per_second","byte/s","3,900,000,000,000"
"2","7","bench","hicache_page_move(CopyArgs)","(512, 1, 1)","(4224, 1, 1)","gpu__time_duration.sum","ns","130,000"
"3","7","bench","hicache_page_zero(ZeroArgs)","(512, 1, 1)","(4224, 1, 1)","sm__warps_active.avg.pct_of_peak_sustained_active","%","93.456"
'''
NCU_WIDE = '''"ID","Kernel Name","gpu__time_duration.sum","launch__registers_per_thread"
"","","ns","register/thread"
"0","hicache_page_zero","2,000","32"
'''


class Report(unittest.TestCase):
    def test_ncu_tables(self):
        lines = h200_report.kernels(NCU_LONG)
        self.assertEqual([(k["what"], k.get("us"), k.get("dram_gb_s"), k.get("occupancy_percent")) for k in lines],
                         [("pages of 32 KiB", 140.51, 3900.0, None), ("pages of 2 MiB", 130.0, None, None), ("pages of 2 MiB", None, None, 93.46)])
        self.assertEqual(h200_report.profiled(NCU_WIDE), [{"kernel": "hicache_page_zero", "us": 2.0, "registers": 32.0}])
        self.assertEqual(h200_report.kernels("==ERROR== no permission\n"), [])

    def test_half_a_line(self):
        self.assertEqual(h200_report.printed('{"work": "a", "x": 1}\nSegmentation fault\n{"work": "b", "x'), [{"work": "a", "x": 1}])

    def test_a_row_of_ncu_that_was_cut_off(self):
        head = '"ID","Kernel Name","Metric Name","Metric Value"\n"0","hicache_page_move(CopyArgs)","gpu__time_duration.sum","139000"\n'
        whole = h200_report.profiled(head)
        self.assertEqual([row["kernel"] for row in whole], ["hicache_page_move"])
        for cut in ('"1"', '"1","hicache_page', '"1","hicache_page_zero(ZeroArgs)"', '"1","hicache_page_zero(ZeroArgs)","gpu__time'):
            self.assertEqual(h200_report.profiled(head + cut), whole, cut)

    def test_gtest(self):
        text = ("[ RUN      ] A.B\n[  FAILED  ] A.B (3 ms)\n[==========] 5 tests from 2 test suites ran. (9 ms total)\n[  PASSED  ] 3 tests.\n"
                "[  SKIPPED ] 1 test, listed below:\n[  FAILED  ] 1 test, listed below:\n[  FAILED  ] A.B\n")
        self.assertEqual(h200_report.gtest("tests_device", text), {"name": "tests_device", "ran": 5, "passed": 3, "skipped": 1, "failed": ["A.B"]})
        self.assertIsNone(h200_report.gtest("tests_device", "[ RUN      ] A.B\n")["ran"])

    def test_a_run(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "gpu.txt").write_text("NVIDIA H200, 580, 5, 16, 143771 MiB\nNVIDIA H200, 580, 5, 16, 143771 MiB\n")
            (folder / "parts.jsonl").write_text('{"part": "bench", "rc": 0, "seconds": 80, "limit": 170}\n{"part": "interference", "rc": 124, "seconds": 150, "limit": 150}\n'
                                                '{"part": "ncu", "rc": 127, "seconds": 0, "limit": 0}\n{"part": "tests_device", "rc": 1, "seconds": 5, "limit": 150}\n')
            (folder / "bench.log").write_text('{"work": "open", "pinned_gib": 8, "again_s": 0.38}\n')
            (folder / "tests_device.log").write_text("[ RUN      ] A.B\n")
            (folder / "sanitizer_racecheck_kernels.log").write_text("[  PASSED  ] 8 tests.\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n")
            h200_report.report(folder)
            result = json.loads((folder / "results.json").read_text())
            self.assertEqual(result["gpus"], 2)
            self.assertEqual([p["outcome"] for p in result["parts"]],
                             ["passed", "STOPPED at its limit", "NOT RUN: the tool is not there", "FAILED (exit 1)"])
            self.assertEqual(result["bench"], [{"work": "open", "pinned_gib": 8, "again_s": 0.38}])
            self.assertEqual(result["sanitizer"][0]["summary"], "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")
            text = (folder / "results.md").read_text()
            for words in ("| interference | STOPPED at its limit | 150 of 150 |", "| tests_device | did not end | 0 | 0 | 0 |", "run `hicache bench cuda --recorded"):
                self.assertIn(words, text)

    def test_bars(self):
        result = {"gpu": "x", "gpus": 1, "parts": [], "tests": [], "sanitizer": [], "kernels": [], "bench": [], "peer": [], "interference": []}
        row = {"work": "open", "config": "8 GiB", "unit": "s", "value": 0.5, "ratio": None, "bar": "<= 0.45 s", "meets": False}
        share = {"work": "page moves", "config": "2 MiB", "unit": "GB/s", "value": 4000.0, "ratio": 0.94, "bar": ">= 92 % of the peer", "meets": True}
        text = h200_report.markdown(result, [row, share, {**row, "bar": None, "meets": None}], "")
        self.assertIn("Bars: 1 met, 1 missed, 0 not judged.", text)
        self.assertIn("| open | 8 GiB | 0.5 s |  | <= 0.45 s | **missed** |", text)
        self.assertIn("| page moves | 2 MiB | 4000 GB/s | 94.0 % | >= 92 % of the peer | met |", text)


if __name__ == "__main__":
    unittest.main()
