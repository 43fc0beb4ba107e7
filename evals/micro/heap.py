"""Memory in use, as glibc's allocator counts it: exact where resident memory also holds what was freed."""

from __future__ import annotations

import ctypes
import ctypes.util
from xml.etree import ElementTree

from agentspec.errors import UnsupportedError


def heap_bytes() -> int:
    """Bytes that this process has allocated and not freed, over all arenas and mapped blocks.

    Raises:
        UnsupportedError: The C library is not glibc.
    """
    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    if not hasattr(libc, "malloc_info"):
        raise UnsupportedError("memory is counted with glibc's malloc_info, which this C library lacks; run on glibc")
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    libc.open_memstream.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    report = ElementTree.fromstring(text.value or b"<malloc/>")
    libc.free(text)
    # The children of the root that are not arenas are the sums.
    sums = {(entry.tag, entry.get("type")): int(entry.get("size", 0)) for entry in report if entry.tag != "heap"}
    free = sums.get(("total", "fast"), 0) + sums.get(("total", "rest"), 0)
    return sums.get(("system", "current"), 0) - free + sums.get(("total", "mmap"), 0)
