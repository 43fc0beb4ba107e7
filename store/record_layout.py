"""The layout of records before compression: little-endian fields one after another, without padding.

    output      output_id u64, time f64, num_prompt_tail u32, n u32, request_id text,
                the tokens' low 16 bits u16[n], their high 8 bits u8[n]
    deletion    time f64, has_request u8, namespace text, request_id text
    manifest    time f64, position text, n u32, n times: name text, num_bytes u64, num_outputs u64, num_tokens u64
    text        length in bytes u16, UTF-8

Split so, tokens take a tenth less room when compressed than as int32, and a fifth less than as four planes of bytes.
"""

from __future__ import annotations

import struct

import numpy as np

from agentspec.config import MAX_TOKEN_IDS
from agentspec.errors import RecordError
from agentspec.store.records import Deletion, Manifest, OutputRecord, SegmentRef

_OUTPUT = struct.Struct("<QdII")
_DELETION = struct.Struct("<dB")
_MANIFEST_TIME = struct.Struct("<d")
_COUNT = struct.Struct("<I")
_SEGMENT = struct.Struct("<QQQ")
_LENGTH = struct.Struct("<H")
_MAX_TEXT = 0xFFFF
# Far in the future, and still exact as seconds in float64 and int64.
_MAX_TIME = 2.0**40


def pack_output(record: OutputRecord) -> bytes:
    tokens = record.tokens
    if tokens.ndim != 1 or tokens.dtype != np.int32:
        raise RecordError(f"a record's tokens must be int32[n], got {tokens.dtype}{list(tokens.shape)}")
    # Viewed as unsigned, negative ids are the largest, so one comparison finds them.
    if len(tokens) and int(tokens.view(np.uint32).max()) >= MAX_TOKEN_IDS:
        raise RecordError(f"a record's token ids must be in [0, {MAX_TOKEN_IDS}), got one outside")
    if not 0 <= record.num_prompt_tail <= len(tokens):
        raise RecordError(f"num_prompt_tail must be in [0, {len(tokens)}], got {record.num_prompt_tail}")
    if not 0 <= record.output_id < 2**64:
        raise RecordError(f"an output's id must be in [0, 2**64), got {record.output_id}")
    head = _OUTPUT.pack(record.output_id, _checked_time(record.time), record.num_prompt_tail, len(tokens))
    low = tokens.astype("<u2")
    high = (tokens >> 16).astype(np.uint8)
    return b"".join((head, _pack_text("request id", record.request_id), low.tobytes(), high.tobytes()))


def unpack_output(payload: bytes) -> OutputRecord:
    fields = _Fields(payload)
    output_id, time, num_prompt_tail, num_tokens = fields.take(_OUTPUT)
    request_id = fields.text()
    low = np.frombuffer(fields.bytes(2 * num_tokens), dtype="<u2")
    high = np.frombuffer(fields.bytes(num_tokens), dtype=np.uint8)
    fields.end()
    if num_prompt_tail > num_tokens:
        raise RecordError(f"damaged: num_prompt_tail is {num_prompt_tail} in a record of {num_tokens} tokens")
    tokens = high.astype(np.int32)
    tokens <<= 16
    tokens |= low
    return OutputRecord(output_id, request_id, _checked_time(time), num_prompt_tail, tokens)


def pack_deletion(deletion: Deletion) -> bytes:
    head = _DELETION.pack(_checked_time(deletion.time), deletion.request_id is not None)
    texts = _pack_text("namespace", deletion.namespace), _pack_text("request id", deletion.request_id or "")
    return b"".join((head, *texts))


def unpack_deletion(payload: bytes) -> Deletion:
    fields = _Fields(payload)
    time, has_request = fields.take(_DELETION)
    namespace, request_id = fields.text(), fields.text()
    fields.end()
    if has_request > 1 or (request_id and not has_request):
        raise RecordError("damaged: a deletion's flag disagrees with its request id")
    return Deletion(namespace, request_id if has_request else None, _checked_time(time))


def pack_manifest(manifest: Manifest) -> bytes:
    parts = [_MANIFEST_TIME.pack(_checked_time(manifest.time)), _pack_text("position", manifest.position)]
    parts.append(_COUNT.pack(len(manifest.segments)))
    for ref in manifest.segments:
        counts = (ref.num_bytes, ref.num_outputs, ref.num_tokens)
        if not all(0 <= count < 2**64 for count in counts):
            raise RecordError(f"a segment's counts must be in [0, 2**64), got {ref}")
        parts += [_pack_text("segment's name", ref.name), _SEGMENT.pack(*counts)]
    return b"".join(parts)


def unpack_manifest(payload: bytes) -> Manifest:
    fields = _Fields(payload)
    (time,) = fields.take(_MANIFEST_TIME)
    position = fields.text()
    (num_segments,) = fields.take(_COUNT)
    segments = []
    for _ in range(num_segments):
        name = fields.text()
        segments.append(SegmentRef(name, *fields.take(_SEGMENT)))
    fields.end()
    return Manifest(position, tuple(segments), _checked_time(time))


def _checked_time(time: float) -> float:
    if not 0 <= time < _MAX_TIME:
        raise RecordError(f"a record's time must be in seconds since 1970, in [0, 2**40), got {time!r}")
    return time


def _pack_text(name: str, text: str) -> bytes:
    # Ids come from clients and may contain an unpaired surrogate.
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > _MAX_TEXT:
        raise RecordError(f"a {name} must be at most {_MAX_TEXT} bytes long, got {len(data)}; use a shorter one")
    return _LENGTH.pack(len(data)) + data


class _Fields:
    """Reads fields one after another; raises RecordError if the data is too short or invalid."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    def bytes(self, count: int) -> bytes:
        taken = self._payload[self._at : self._at + count]
        if len(taken) != count:
            raise RecordError(f"damaged: {count} bytes needed at {self._at} of a record of {len(self._payload)}")
        self._at += count
        return taken

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        # Floats are returned as floats; the annotation says int to avoid a cast for each count.
        return layout.unpack(self.bytes(layout.size))

    def text(self) -> str:
        (length,) = self.take(_LENGTH)
        try:
            return self.bytes(length).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise RecordError(f"damaged: a text is no UTF-8: {error.reason}") from error

    def end(self) -> None:
        if self._at != len(self._payload):
            raise RecordError(f"damaged: {len(self._payload) - self._at} bytes too many in a record")
