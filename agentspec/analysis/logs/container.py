"""The bytes of a file as UTF-8: unpacked and recoded by their content, whatever the file is called.

A file that is no log in any layout is refused with its kind and the command that converts it.
"""

from __future__ import annotations

import bz2
import codecs
import io
import lzma
import zlib
from collections.abc import Callable
from typing import IO, Any, NamedTuple

import zstandard

_READ = 1 << 14
"""The packed bytes that are unpacked at a time: few, because a part may become a thousand times as long."""
_SNIFFED = 4096
COMPRESSED = (".xz", ".gz", ".bz2", ".zst", ".zstd")
"""Endings of compressed files, which say nothing about the content."""


# The first bytes of a packed part -> what makes the object that unpacks it.
_PACKINGS: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b\x08": lambda: zlib.decompressobj(wbits=31),
    b"\xfd7zXZ\0": lzma.LZMADecompressor,
    b"BZh": bz2.BZ2Decompressor,
    b"\x28\xb5\x2f\xfd": lambda: zstandard.ZstdDecompressor().decompressobj(),
}
_ERRORS = (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, EOFError, ValueError)


class _Kind(NamedTuple):
    offset: int
    magic: bytes
    name: str
    advice: str


PARQUET = b"PAR1"
_KINDS = (
    _Kind(
        0,
        PARQUET,
        "a Parquet file",
        "install pyarrow (pip install pyarrow), or convert it: python -c \"import pandas; pandas.read_parquet('FILE').to_json('FILE.jsonl', "
        "orient='records', lines=True)\"",
    ),
    _Kind(
        0,
        b"ARROW1",
        "an Arrow file",
        "python -c \"import pandas; pandas.read_feather('FILE').to_json('FILE.jsonl', orient='records', lines=True)\"",
    ),
    _Kind(
        0,
        b"\xff\xff\xff\xff",
        "an Arrow stream, as data sets of Hugging Face are cached",
        "python -c \"import datasets; datasets.Dataset.from_file('FILE').to_json('FILE.jsonl')\"",
    ),
    _Kind(0, b"SQLite format 3\0", "a SQLite database", 'sqlite3 -json FILE "SELECT * FROM TABLE" > FILE.json'),
    _Kind(0, b"PK\x03\x04", "a ZIP archive (or a spreadsheet)", "unzip FILE -d FOLDER, and pass the folder"),
    _Kind(257, b"ustar", "a tar archive", "tar xf FILE -C FOLDER, and pass the folder"),
    _Kind(0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", "7z x FILE -oFOLDER, and pass the folder"),
    _Kind(0, b"\x04\x22\x4d\x18", "compressed with LZ4", "lz4 -d FILE FILE.jsonl"),
    _Kind(0, b"\xff\x06\0\0sNaPpY", "compressed with Snappy", "python -m snappy -d FILE FILE.jsonl"),
    _Kind(0, b"Obj\x01", "an Avro file", "fastavro FILE > FILE.jsonl"),
    _Kind(0, b"\x89HDF\r\n", "an HDF5 file", "write its records as JSON lines"),
    _Kind(0, b"%PDF", "a PDF document", "pass the log it was made of"),
    *(
        _Kind(
            0,
            bytes([0x80, version]),
            "a Python pickle",
            "python -c \"import json, pickle; json.dump(pickle.load(open('FILE', 'rb')), open('FILE.json', 'w'), "
            'default=vars)" if you trust the file',
        )
        for version in (2, 3, 4, 5)
    ),
)
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class Content(io.RawIOBase):
    """A stream of a file's content, unpacked and as UTF-8. A damaged end does not raise: the content ends there, and
    `damage` says why."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self.damage = ""
        self._stream = stream
        self._made = b""
        self._unpacker: Any = None
        self._decoder: codecs.IncrementalDecoder | None = None
        self._ended = False
        start = stream.read(_SNIFFED)
        self._magic = next((magic for magic in _PACKINGS if start.startswith(magic)), None)
        self._packed = start
        unpacked = b""
        while len(unpacked) < _SNIFFED and not self._ended:
            unpacked += self._next()
        name = encoding_of(unpacked)
        if name is not None:
            self._decoder = codecs.getincrementaldecoder(name)("replace")
            unpacked = self._recoded(unpacked)
        self._made = unpacked

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        # Whoever peeks should see as much as a buffer holds.
        wanted = min(len(buffer), 4 * _READ)
        while len(self._made) < wanted and not self._ended:
            self._made += self._recoded(self._next())
        size = min(len(buffer), len(self._made))
        buffer[:size] = self._made[:size]
        self._made = self._made[size:]
        return size

    def _recoded(self, data: bytes) -> bytes:
        if self._decoder is None:
            return data
        return self._decoder.decode(data, self._ended).encode("utf-8", "replace")

    def _next(self) -> bytes:
        """The next part of the unpacked content; b"" does not mean the end, which sets `_ended`."""
        data, self._packed = self._packed, b""
        if not data:
            try:
                data = self._stream.read(_READ)
            except OSError as error:
                self._end(str(error))
                return b""
        if self._magic is None:
            self._ended = not data
            return data
        if not data:
            # Between two compressed parts is a good end.
            self._end("" if self._unpacker is None else "its compressed data stops before their end")
            return b""
        if self._unpacker is None:
            if not data.startswith(self._magic):
                self._end("" if not data.strip(b"\0") else "something else follows its compressed data")
                return b""
            self._unpacker = _PACKINGS[self._magic]()
        try:
            made: bytes = self._unpacker.decompress(data)
        except _ERRORS as error:
            self._end(f"its compressed data is damaged: {error}")
            return b""
        if self._unpacker.eof:
            self._packed, self._unpacker = self._unpacker.unused_data, None
            if not self._packed:
                # The first bytes of what follows decide whether it is another compressed part.
                self._packed = self._stream.read(_READ)
                self._ended = not self._packed
        return made

    def _end(self, damage: str) -> None:
        self.damage, self._ended = damage, True


def encoding_of(start: bytes) -> str | None:
    """The name of an encoding that is not plain UTF-8; None for UTF-8."""
    for bom, name in _BOMS:
        if start.startswith(bom):
            return name
    # JSON begins with two characters of ASCII, of which UTF-16 has one byte each that is 0.
    if len(start) >= 4 and start[0] and not start[1] and start[2] and not start[3]:
        return "utf-16-le"
    if len(start) >= 4 and not start[0] and start[1] and not start[2] and start[3]:
        return "utf-16-be"
    return None


def refused_kind(start: bytes, name: str) -> str:
    """Why a file with these first bytes cannot be read, and the command that converts it; "" if nothing is known."""
    for kind in _KINDS:
        if start[kind.offset : kind.offset + len(kind.magic)] == kind.magic:
            return f"is {kind.name}, which is not read; {kind.advice.replace('FILE', name)}"
    return ""
