"""A layer of a pool as a tensor, for torch, CuPy, numpy and whatever else takes DLPack or __cuda_array_interface__. No bytes are copied.

The DLPack structures are those of its stable C ABI, version 0: https://dmlc.github.io/dlpack/latest/c_api.html
"""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, py_object

from . import _abi as abi
from ._errors import InvalidArgument

_CPU, _CUDA = 1, 2  # DLDeviceType

# Name: DLDataTypeCode, bytes, type string of the array interfaces (None where numpy has no such type).
_DTYPES = {
    "uint8": (1, 1, "|u1"),
    "int8": (0, 1, "|i1"),
    "float16": (2, 2, "<f2"),
    "bfloat16": (4, 2, None),
    "float32": (2, 4, "<f4"),
}


class _Device(Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class _DataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", _Device),
        ("ndim", c_int32),
        ("dtype", _DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", _Deleter)]

_live = {}  # Address of a _Managed: it and what it points to, until its taker calls the deleter.


def _deleted(managed):
    _live.pop(ctypes.addressof(managed.contents), None)


_deleter = _Deleter(_deleted)

# Not ctypes.pythonapi: its functions are shared, and others give them argument types of their own.
_python = ctypes.PyDLL(None)
_new_capsule = _python.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = py_object, [c_void_p, c_char_p, c_void_p]
_is_capsule = _python.PyCapsule_IsValid
_is_capsule.restype, _is_capsule.argtypes = c_int32, [c_void_p, c_char_p]
_capsule_pointer = _python.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = c_void_p, [c_void_p, c_char_p]


def _capsule_gone(capsule):
    if _is_capsule(capsule, b"dltensor"):  # Nobody took it: a taker renames it and calls the deleter itself.
        _live.pop(_capsule_pointer(capsule, b"dltensor"), None)


_capsule_destructor = ctypes.CFUNCTYPE(None, c_void_p)(_capsule_gone)


class LayerTensor:
    """The K or V rows of one layer of a pool: shape (physical pages, tokens of a page, elements of a row).

    Index 0 is the physical page, i.e. kernel id of a page * scale + offset of hicache_pool_info_t. The tensor holds no page and does not keep the
    engine open: touch a page while a lease or step holds it, and nothing after close.
    """

    def __init__(self, engine, pool, layer, part, dtype):
        if dtype not in _DTYPES:
            raise InvalidArgument("layer tensor", f"dtype {dtype!r}: want one of {', '.join(_DTYPES)}")
        if part not in ("k", "v"):
            raise InvalidArgument("layer tensor", f"part {part!r}: want 'k' or 'v'")
        info = engine.pool_info(abi.HICACHE_TIER_DEVICE, pool)
        layers, row_bytes, tokens = engine._rows(pool, part)
        if not 0 <= layer < layers:
            raise InvalidArgument("layer tensor", f"layer index {layer}: pool {pool} has {layers}")
        if info.arena_base == 0:
            raise InvalidArgument("layer tensor", "the null backend has no bytes")
        self._code, size, self._typestr = _DTYPES[dtype]
        token_stride = info.token_stride_bytes if part == "k" else info.v_token_stride_bytes
        if row_bytes == 0:
            raise InvalidArgument("layer tensor", f"pool {pool} has no {part} rows")
        for what, value in (("a row", row_bytes), ("a page", info.page_bytes), ("the stride of tokens", token_stride)):
            if value % size:
                raise InvalidArgument("layer tensor", f"{what} of {value} bytes is no whole number of {dtype}")
        self._engine = engine  # Not to keep it open: to know the device.
        self._on = (_CUDA, engine._device) if engine._backend == abi.HICACHE_BACKEND_CUDA else (_CPU, 0)
        self._size = size
        self._address = info.arena_base + layer * info.layer_stride_bytes + (info.v_offset_bytes if part == "v" else 0)
        self.shape = (info.page_count, tokens, row_bytes // size)
        self.strides = (info.page_bytes, token_stride, size)  # Bytes.

    def _interface(self):
        if self._typestr is None:
            raise AttributeError("bfloat16 has no type string: use DLPack")
        return {"shape": self.shape, "strides": self.strides, "typestr": self._typestr, "data": (self._address, False), "version": 3}

    @property
    def __array_interface__(self):
        if self._on[0] != _CPU:
            raise AttributeError("the rows are on a GPU")
        return self._interface()

    @property
    def __cuda_array_interface__(self):
        if self._on[0] != _CUDA:
            raise AttributeError("the rows are in host memory")
        return self._interface()

    def __dlpack_device__(self):
        return self._on

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """A capsule of DLPack. The library writes pages on streams of its own; a lease or an open step is what orders them, so `stream` is not
        looked at."""
        if dl_device is not None and tuple(dl_device) != self._on:
            raise BufferError(f"the rows are on device {self._on}, not on {tuple(dl_device)}")
        if copy:
            raise BufferError("a view of pages is not copied")
        shape = (c_int64 * 3)(*self.shape)
        strides = (c_int64 * 3)(*[stride // self._size for stride in self.strides])
        managed = _Managed()
        tensor = managed.tensor
        tensor.data, tensor.ndim, tensor.byte_offset = self._address, 3, 0
        tensor.device.device_type, tensor.device.device_id = self._on
        tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = self._code, 8 * self._size, 1
        tensor.shape, tensor.strides = ctypes.cast(shape, POINTER(c_int64)), ctypes.cast(strides, POINTER(c_int64))
        managed.deleter = _deleter
        address = ctypes.addressof(managed)
        _live[address] = (managed, shape, strides)
        return _new_capsule(address, b"dltensor", ctypes.cast(_capsule_destructor, c_void_p))
