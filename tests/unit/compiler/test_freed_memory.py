"""Memory that the C library keeps after it was freed."""

import ctypes
from pathlib import Path

import pytest

from systolic.compiler.memory import give_back_freed_memory

_BLOCK_BYTES = 2**16  # smaller than those that glibc returns at once
_BLOCKS = 1000
_STATM = Path("/proc/self/statm")


def resident_pages():
    return int(_STATM.read_text().split()[1])


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc")
def test_freed_memory_goes_back_to_the_system():
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = [libc.malloc(_BLOCK_BYTES) for _ in range(_BLOCKS)]
    for block in blocks:
        libc.memset(block, 1, _BLOCK_BYTES)
    for block in blocks[:-1]:  # the last one keeps the heap from shrinking by itself
        libc.free(block)
    kept = resident_pages()

    give_back_freed_memory()

    assert kept - resident_pages() > _BLOCKS // 2 * _BLOCK_BYTES // 4096
    libc.free(blocks[-1])


def test_another_c_library_keeps_its_memory(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())

    give_back_freed_memory()


def test_a_system_without_a_c_library_to_open(monkeypatch):
    def refuse(name):
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", refuse)

    give_back_freed_memory()
