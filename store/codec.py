"""Converts records, manifests and segments to the bytes that a store holds, and back.

A frame, whose numbers are little-endian:

    bytes
    0-3     "agsp"
    4       version of the format, 1
    5       kind: 1 output, 2 deletion, 3 manifest, 4 chunk of a segment
    6       flags: 1 compressed with zstd, 2 encrypted
    7       0
    8-11    size of the payload before compression
    12-19   place: the first bytes of a SHA-256 of scope, namespace and, for a chunk, segment and number
    20-     the payload (record_layout.py, or a part of a segment), compressed, then encrypted (encryption.py)
    last 4  CRC-32 of all before

"agsp", the version and the checksum are where they are in every version. With a key whatever is written is encrypted,
bound to its frame's first 20 bytes and its whole place, so that nobody can move it to another tenant. Frames that are
not encrypted can be read all the same, and are counted, so that a store can be given a key later on; whoever can write
to the store can thus add text of their own, which costs speed and never changes an output, since drafts are verified.
"""

from __future__ import annotations

import hashlib
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator

import numpy as np
import zstandard
from numpy.typing import NDArray

from agentspec.errors import RecordError
from agentspec.store.base import CONTROL, Scope
from agentspec.store.encryption import Cipher
from agentspec.store.record_layout import (
    pack_deletion,
    pack_manifest,
    pack_output,
    unpack_deletion,
    unpack_manifest,
    unpack_output,
)
from agentspec.store.records import Deletion, Manifest, OutputRecord

CHUNK_BYTES = 4 << 20
"""Bytes of a segment in each chunk; the last chunk may be shorter."""
MAX_RECORD_BYTES = 64 << 20
"""The largest payload of a record or manifest, which bounds what a forged one can make a reader allocate."""

_MAGIC = b"agsp"
_VERSION = 1
_OUTPUT, _DELETION, _MANIFEST, _CHUNK = 1, 2, 3, 4
_KINDS = {_OUTPUT: "output", _DELETION: "deletion", _MANIFEST: "manifest", _CHUNK: "chunk of a segment"}
_COMPRESSED, _ENCRYPTED = 1, 2
_HEADER = struct.Struct("<4sBBBBI8s")
_CHECKSUM = struct.Struct("<I")
_PLACE_BYTES = 8
_RECORD_LEVEL = 3
# Segments hold token ids and ranks among them: higher levels take far longer for a few hundredths.
_SEGMENT_LEVEL = 1
_MAX_SEGMENT_BYTES = 1 << 38


class Codec:
    """Encodes and decodes the contents of one scope's store. Thread-safe.

    Whatever bytes it is given, decoding raises RecordError or nothing, and takes no more memory than the record may
    have; its message names no text, its `fault` says whether the bytes are damaged, newer, foreign or encrypted.
    """

    num_unencrypted: int
    """Number of frames that were read unencrypted although a key was given."""

    def __init__(self, scope: Scope, key: bytes | None = None) -> None:
        """`key`: at least 32 bytes, with which everything is encrypted; None: nothing is. Raises ConfigError if the key
        is too short, or the package `cryptography` is missing."""
        self.scope = scope
        self.num_unencrypted = 0
        self._cipher = None if key is None else Cipher(scope, key)
        self._zstd = _Zstd()
        self._counting = threading.Lock()

    @property
    def has_key(self) -> bool:
        return self._cipher is not None

    def encode(self, namespace: str, record: OutputRecord | Deletion) -> bytes:
        """Encodes an entry of a namespace's log, or a Deletion of CONTROL's; raises RecordError for a bad field."""
        if isinstance(record, Deletion):
            return self._seal(namespace, _DELETION, pack_deletion(record), self._place(namespace))
        return self._seal(namespace, _OUTPUT, pack_output(record), self._place(namespace))

    def decode(self, namespace: str, data: bytes) -> OutputRecord | Deletion:
        """Decodes an entry of a namespace's log; raises RecordError if it cannot be read."""
        expected = _DELETION if namespace == CONTROL else _OUTPUT
        payload = self._open(namespace, expected, data, self._place(namespace), MAX_RECORD_BYTES)
        return unpack_deletion(payload) if expected == _DELETION else unpack_output(payload)

    def encode_manifest(self, namespace: str, manifest: Manifest) -> bytes:
        """Raises RecordError if a field is out of range."""
        return self._seal(namespace, _MANIFEST, pack_manifest(manifest), self._place(namespace))

    def decode_manifest(self, namespace: str, data: bytes) -> Manifest:
        """Raises RecordError."""
        return unpack_manifest(self._open(namespace, _MANIFEST, data, self._place(namespace), MAX_RECORD_BYTES))

    def encode_segment(
        self, namespace: str, name: str, blob: bytes | bytearray | memoryview | NDArray[np.uint8]
    ) -> Iterator[bytes]:
        """The chunks of a segment, each encoded when it is requested."""
        view = memoryview(blob.data if isinstance(blob, np.ndarray) else blob).cast("B")
        for number, start in enumerate(range(0, len(view), CHUNK_BYTES)):
            place = self._place(namespace, name, number, len(view))
            yield self._seal(namespace, _CHUNK, view[start : start + CHUNK_BYTES], place)

    def decode_segment(self, namespace: str, name: str, chunks: Iterable[bytes], num_bytes: int) -> NDArray[np.uint8]:
        """A segment of `num_bytes` from its chunks, uint8[num_bytes]; raises RecordError."""
        if not 0 <= num_bytes <= _MAX_SEGMENT_BYTES:
            raise RecordError(f"damaged: a segment of {num_bytes} bytes; at most {_MAX_SEGMENT_BYTES} are expected")
        blob = np.empty(0, dtype=np.uint8)
        start = 0
        for number, chunk in enumerate(chunks):
            expected = min(CHUNK_BYTES, num_bytes - start)
            if expected <= 0:
                raise RecordError(f"damaged: segment {name} has more chunks than its {num_bytes} bytes need")
            place = self._place(namespace, name, number, num_bytes)
            part = self._open(namespace, _CHUNK, chunk, place, expected)
            if len(part) != expected:
                raise RecordError(f"damaged: chunk {number} of segment {name} has {len(part)} bytes, not {expected}")
            if not start:
                blob = _allocate(num_bytes)
            blob[start : start + expected] = np.frombuffer(part, dtype=np.uint8)
            start += expected
        if start != num_bytes:
            raise RecordError(f"damaged: segment {name} has {start} bytes in its chunks, not {num_bytes}")
        return blob

    def _place(self, namespace: str, *names: str | int) -> bytes:
        words = (self.scope.id, namespace, *map(str, names))
        joined = "".join(f"{len(word)}:{word}" for word in words)
        return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).digest()

    def _seal(self, namespace: str, kind: int, payload: bytes | memoryview, place: bytes) -> bytes:
        size = len(payload)
        if size > MAX_RECORD_BYTES:
            raise RecordError(f"a record must have at most {MAX_RECORD_BYTES} bytes, got {size}; shorten the output")
        compressor = self._zstd.chunks if kind == _CHUNK else self._zstd.records
        body: bytes | memoryview = compressor.compress(payload)
        flags = _COMPRESSED if len(body) < size else 0
        if not flags:
            body = payload
        if self._cipher:
            flags |= _ENCRYPTED
        header = _HEADER.pack(_MAGIC, _VERSION, kind, flags, 0, size, place[:_PLACE_BYTES])
        if self._cipher:
            body = self._cipher.seal(namespace, bytes(body), header + place)
        checksum = zlib.crc32(body, zlib.crc32(header))
        return b"".join((header, body, _CHECKSUM.pack(checksum)))

    def _open(self, namespace: str, expected: int, data: bytes, place: bytes, max_size: int) -> bytes:
        header, body = data[: _HEADER.size], memoryview(data)[_HEADER.size : -_CHECKSUM.size]
        flags, size = _check_frame(data, expected)
        if header[-_PLACE_BYTES:] != place[:_PLACE_BYTES]:
            raise RecordError(
                "foreign: written for another model, tokenizer, namespace or place in a segment; "
                "open the store with the model and tokenizer it was written with",
                "foreign",
            )
        if size > max_size:
            raise RecordError(f"damaged: a record of {size} bytes; at most {max_size} are expected")
        if flags & _ENCRYPTED:
            if self._cipher is None:
                raise RecordError("encrypted; open the store with its key", "encrypted")
            body = memoryview(self._cipher.open(namespace, bytes(body), header + place))
        elif self._cipher:
            with self._counting:
                self.num_unencrypted += 1
        payload = self._zstd.decompress(body, size) if flags & _COMPRESSED else bytes(body)
        if len(payload) != size:
            raise RecordError(f"damaged: a record of {len(payload)} bytes says that it has {size}")
        return payload


def _check_frame(data: bytes, expected: int) -> tuple[int, int]:
    """The frame's flags and size; raises RecordError unless it is whole and of the expected kind and version."""
    if len(data) < _HEADER.size + _CHECKSUM.size or data[: len(_MAGIC)] != _MAGIC:
        raise RecordError("damaged: it does not begin as a record of agentspec, or ends too early")
    (checksum,) = _CHECKSUM.unpack_from(data, len(data) - _CHECKSUM.size)
    if zlib.crc32(memoryview(data)[: -_CHECKSUM.size]) != checksum:
        raise RecordError("damaged: its checksum is wrong")
    _, version, kind, flags, reserved, size, _ = _HEADER.unpack_from(data)
    if version > _VERSION or kind not in _KINDS or flags & ~(_COMPRESSED | _ENCRYPTED) or reserved:
        raise RecordError(
            f"newer: of format {version}, kind {kind}, flags {flags}; this agentspec reads formats up to {_VERSION}, "
            "upgrade it",
            "newer",
        )
    if version < 1 or kind != expected:
        raise RecordError(f"damaged: {_KINDS[kind]} of format {version} where one of {_KINDS[expected]} should be")
    return flags, size


def _allocate(num_bytes: int) -> NDArray[np.uint8]:
    try:
        return np.empty(num_bytes, dtype=np.uint8)
    except MemoryError as error:
        raise RecordError(f"damaged: a segment of {num_bytes} bytes, for which there is no memory") from error


class _Zstd(threading.local):
    """Compressors, each for use by one thread."""

    def __init__(self) -> None:
        self.records = zstandard.ZstdCompressor(level=_RECORD_LEVEL)
        self.chunks = zstandard.ZstdCompressor(level=_SEGMENT_LEVEL)
        self._decompressor = zstandard.ZstdDecompressor()

    def decompress(self, body: memoryview, size: int) -> bytes:
        """A payload of `size` bytes; never allocates more than that, even if the frame states a larger size."""
        try:
            # The decompressor allocates the size that a frame states at once.
            if zstandard.frame_content_size(body) != size:
                raise RecordError(f"damaged: a record says another size than its {size} bytes")
            return self._decompressor.decompress(body, max_output_size=size, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise RecordError(f"damaged: it cannot be decompressed: {error}") from error
