"""Finds and loads libhicache."""

import ctypes
import os
import platform
import sys

from . import _abi as abi
from ._errors import NoLibrary

_FILE = "libhicache.so"
_SONAME = "libhicache.so.0"
_ENV = "HICACHE_LIBRARY"


class Library:
    """A loaded libhicache: its functions, typed, under the header's names without the prefix ("alloc")."""

    def __init__(self, path):
        library = ctypes.CDLL(path)  # Calls release the GIL.
        try:
            version = library.hicache_abi_version
        except AttributeError:
            raise ValueError("not a hicache library: it has no hicache_abi_version") from None
        version.restype = ctypes.c_uint32
        version.argtypes = []
        major, minor = version() >> 16, version() & 0xFFFF
        if major != abi.HICACHE_ABI_MAJOR or minor < abi.HICACHE_ABI_MINOR:
            raise ValueError(
                f"a hicache library of ABI {major}.{minor}, this program speaks ABI {abi.HICACHE_ABI_MAJOR}.{abi.HICACHE_ABI_MINOR}"
            )
        self.path = path
        self.abi_version = (major, minor)
        for name, result, parameters in abi.PROTOTYPES:
            try:
                function = getattr(library, name)
            except AttributeError:
                raise ValueError(f"a hicache library of ABI {major}.{minor} without {name}") from None
            function.restype, function.argtypes = result, parameters
            setattr(self, name[len("hicache_") :], function)

    def layout(self):
        """Sizes and offsets as the library was compiled, by name."""
        name, value = ctypes.c_char_p(), ctypes.c_uint64()
        out = {}
        for index in range(self.abi_layout(0, None, None)):
            self.abi_layout(index, ctypes.byref(name), ctypes.byref(value))
            out[name.value.decode()] = value.value
        return out


def _file_in(path):
    path = os.path.abspath(os.fspath(path))
    return os.path.join(path, _FILE) if os.path.isdir(path) else path


def _candidates(path):
    if path is not None:
        return [("option", _file_in(path))]
    if os.environ.get(_ENV):
        return [(_ENV, _file_in(os.environ[_ENV]))]
    here = os.path.dirname(os.path.abspath(__file__))
    return [
        ("beside the executable", os.path.join(os.path.dirname(os.path.realpath(sys.executable)), _FILE)),
        ("beside the package", os.path.join(here, _FILE)),
        ("build folder", os.path.normpath(os.path.join(here, "..", "..", "..", "build", _FILE))),
        ("system", _SONAME),
        ("system", _FILE),
    ]


def load(path=None):
    """Loads libhicache. A path (a file, or a folder that holds libhicache.so), or else HICACHE_LIBRARY, is the only one tried; else the
    folders of the executable and of this package, the build folder of the repository around it, and the system's loader."""
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "aarch64"):
        raise NoLibrary(f"libhicache runs on linux x86_64 and aarch64, not on {sys.platform} {platform.machine()}")
    tried = []
    for origin, candidate in _candidates(path):
        try:
            return Library(candidate)
        except (OSError, ValueError) as error:
            tried.append(f"\n  {origin}: {candidate}: {error}")
    raise NoLibrary(f"hicache: no usable {_FILE}" + "".join(tried))
