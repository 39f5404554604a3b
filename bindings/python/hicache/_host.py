"""Views of memory of the library."""

import ctypes


def bytes_at(address, size):
    """A writable memoryview of foreign memory: nothing keeps it alive but the engine."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def array_of(view):
    """A numpy array (uint8) over a view; it needs numpy."""
    import numpy

    return numpy.frombuffer(view, dtype=numpy.uint8)


class HostView:
    """Leased host pages with their bytes: `pages[i]` is a writable memoryview (None on the null backend). Valid inside the `with` alone."""

    def __init__(self, engine, lease, pages):
        self._engine, self._lease, self.pages = engine, lease, pages

    def arrays(self):
        """The pages as numpy arrays of uint8."""
        return [array_of(page) for page in self.pages]

    def release(self):
        if self._lease:
            lease, self._lease, self.pages = self._lease, 0, []
            self._engine._call("lease release", "lease_release", lease)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()
