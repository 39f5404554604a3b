"""Sizes and offsets: the header's, ctypes' and those of the compiler that built the library are the same."""

import ctypes
import os
import tempfile
import unittest

import hicache
from hicache import abi


def here():
    out = {}
    for tag, struct in abi.STRUCTS.items():
        out[tag] = ctypes.sizeof(struct)
        for name, _ in struct._fields_:
            out[f"{tag}.{name}"] = getattr(struct, name).offset
    return out


class Layout(unittest.TestCase):
    def test_header(self):
        self.assertEqual(here(), abi.LAYOUT)

    def test_library(self):
        self.assertEqual(hicache.load().layout(), here())

    def test_status_names(self):
        library = hicache.load()
        for status, name in abi.STATUS_NAMES.items():
            self.assertEqual(library.status_name(status).decode(), name)


class Loader(unittest.TestCase):
    def refusal(self, path):
        with self.assertRaises(hicache.NoLibrary) as caught:
            hicache.load(path)
        return str(caught.exception)

    def test_missing(self):
        self.assertIn("option: /nowhere/libhicache.so: ", self.refusal("/nowhere/libhicache.so"))

    def test_not_a_library(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "libhicache.so"), "w") as file:
                file.write("not an ELF file\n" * 64)
            self.assertIn("invalid ELF header", self.refusal(folder))

    def test_foreign(self):
        with open("/proc/self/maps") as maps:
            libc = next(line.split()[5] for line in maps if "/libc" in line)
        self.assertIn("not a hicache library", self.refusal(libc))


if __name__ == "__main__":
    unittest.main()
