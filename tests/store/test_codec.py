"""Records, manifests and segments as bytes: intact, damaged, newer, foreign and encrypted ones."""

from __future__ import annotations

import sys
import zlib

import numpy as np
import pytest
import zstandard
from every import every
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.errors import ConfigError, RecordError
from agentspec.store.base import CONTROL, Scope
from agentspec.store.codec import CHUNK_BYTES, Codec
from agentspec.store.records import Deletion, Manifest, OutputRecord, SegmentRef

SCOPE = Scope("model", "tokenizer")
TENANT = "0123456789abcdef" * 2
KEY = bytes(range(32))
HEADER_BYTES = 20

texts = st.text(st.characters(), max_size=40)
times = st.floats(0, 2.0**39)
token_arrays = st.lists(st.integers(0, 2**24 - 1), max_size=300).map(lambda ids: np.array(ids, dtype=np.int32))
records = st.builds(
    lambda output_id, request_id, time, tail, tokens: OutputRecord(
        output_id, request_id, time, min(tail, len(tokens)), tokens
    ),
    st.integers(0, 2**64 - 1),
    texts,
    times,
    st.integers(0, 20),
    token_arrays,
)
manifests = st.builds(
    Manifest, texts, st.lists(st.builds(SegmentRef, texts, *[st.integers(0, 2**63)] * 3), max_size=5).map(tuple), times
)


def record(num_tokens: int = 50, request_id: str = "request 1") -> OutputRecord:
    rng = np.random.default_rng(num_tokens)
    return OutputRecord(2**63 + 5, request_id, 1.5e9, 0, rng.integers(0, 1000, num_tokens, dtype=np.int32))


def fields(value: OutputRecord | Deletion) -> tuple[object, ...]:
    assert isinstance(value, OutputRecord)
    assert value.tokens.dtype == np.int32
    return (value.output_id, value.request_id, value.time, value.num_prompt_tail, value.tokens.tolist())


def with_checksum(frame: bytes) -> bytes:
    """Gives the frame a matching checksum, as a forger would."""
    return frame[:-4] + zlib.crc32(frame[:-4]).to_bytes(4, "little")


def fault(codec: Codec, data: bytes, namespace: str = TENANT) -> str:
    with pytest.raises(RecordError) as raised:
        codec.decode(namespace, data)
    assert str(raised.value)
    return raised.value.fault


@pytest.mark.parametrize("key", [None, KEY])
@given(record=records)
def test_outputs_come_back(key: bytes | None, record: OutputRecord) -> None:
    codec = Codec(SCOPE, key)
    assert fields(codec.decode(TENANT, codec.encode(TENANT, record))) == fields(record)


@pytest.mark.parametrize("key", [None, KEY])
@given(deletion=st.builds(Deletion, texts, st.none() | texts, times))
def test_deletions_come_back(key: bytes | None, deletion: Deletion) -> None:
    codec = Codec(SCOPE, key)
    assert codec.decode(CONTROL, codec.encode(CONTROL, deletion)) == deletion


@pytest.mark.parametrize("key", [None, KEY])
@given(manifest=manifests)
def test_manifests_come_back(key: bytes | None, manifest: Manifest) -> None:
    codec = Codec(SCOPE, key)
    assert codec.decode_manifest(TENANT, codec.encode_manifest(TENANT, manifest)) == manifest


@every("key", [None, KEY])
@every("num_bytes", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_segments_come_back(key: bytes | None, num_bytes: int) -> None:
    codec = Codec(SCOPE, key)
    blob = np.resize(np.random.default_rng(1).integers(0, 256, 5000, dtype=np.uint8), num_bytes)
    chunks = list(codec.encode_segment(TENANT, "s", blob))
    assert len(chunks) == -(-num_bytes // CHUNK_BYTES)
    np.testing.assert_array_equal(codec.decode_segment(TENANT, "s", chunks, num_bytes), blob)


@every(
    "wrong",
    [
        OutputRecord(1, "r", 0.0, 0, np.array([2**24], np.int32)),
        OutputRecord(1, "r", 0.0, 0, np.array([-1], np.int32)),
        OutputRecord(1, "r", 0.0, 2, np.array([1], np.int32)),
        OutputRecord(1, "r", 0.0, 0, np.array([1], np.int64)),  # type: ignore[arg-type]
        OutputRecord(1, "r" * 2**16, 0.0, 0, np.array([1], np.int32)),
        OutputRecord(2**64, "r", 0.0, 0, np.array([1], np.int32)),
        OutputRecord(1, "r", float("nan"), 0, np.array([1], np.int32)),
        Deletion(TENANT, None, -1.0),
    ],
)
def test_what_could_not_be_read_is_not_written(wrong: OutputRecord | Deletion) -> None:
    with pytest.raises(RecordError):
        Codec(SCOPE).encode(TENANT, wrong)


@pytest.mark.parametrize("key", [None, KEY])
@settings(max_examples=300)
@given(data=st.data())
def test_damage_is_found_wherever_it_is(key: bytes | None, data: st.DataObject) -> None:
    codec = Codec(SCOPE, key)
    frame = bytearray(codec.encode(TENANT, record()))
    if data.draw(st.booleans()):
        del frame[data.draw(st.integers(0, len(frame) - 1)) :]
    else:
        bit = data.draw(st.integers(0, 8 * len(frame) - 1))
        frame[bit // 8] ^= 1 << bit % 8
    assert fault(codec, bytes(frame)) == "damaged"


@settings(max_examples=500)
@given(st.binary(max_size=200), st.sampled_from([None, KEY]), st.booleans())
def test_no_bytes_raise_anything_else(data: bytes, key: bytes | None, known: bool) -> None:
    codec = Codec(SCOPE, key)
    if known:
        data = with_checksum(codec.encode(TENANT, record())[:HEADER_BYTES] + data + b"crc.")
    with pytest.raises(RecordError):
        codec.decode(TENANT, data)
    with pytest.raises(RecordError):
        codec.decode_manifest(TENANT, data)
    with pytest.raises(RecordError):
        codec.decode_segment(TENANT, "s", [data], 1000)


@settings(max_examples=500)
@given(data=st.data())
def test_forged_payloads_raise_nothing_else(data: st.DataObject) -> None:
    """Any part of a payload is changed and the checksum made to match. Decoding then gives wrong data or refuses it."""
    codec = Codec(SCOPE)
    plain = codec.encode(TENANT, record(3))
    assert plain[6] == 0  # not worth compressing
    payload = bytearray(plain[HEADER_BYTES:-4])
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = codec.decode(TENANT, with_checksum(plain[:HEADER_BYTES] + bytes(payload) + b"crc."))
    except RecordError:
        return
    assert isinstance(read, OutputRecord)
    codec.encode(TENANT, read)


def test_a_small_frame_cannot_take_much_memory() -> None:
    codec = Codec(SCOPE)
    frame = bytearray(codec.encode(TENANT, record(3)))
    bomb = zstandard.ZstdCompressor().compress(bytes(256 << 20))
    frame[6] = 1
    for size in (1000, 64 << 20, 2**32 - 1):
        frame[8:12] = size.to_bytes(4, "little")
        assert fault(codec, with_checksum(bytes(frame[:HEADER_BYTES]) + bomb + b"crc.")) == "damaged"
    with pytest.raises(RecordError):
        codec.decode_segment(TENANT, "s", codec.encode_segment(TENANT, "s", b"abc"), sys.maxsize)


def test_a_newer_format_is_told_from_damage() -> None:
    codec = Codec(SCOPE)
    frame = bytearray(codec.encode(TENANT, record()))
    frame[4] = 2
    assert fault(codec, with_checksum(bytes(frame))) == "newer"
    assert fault(codec, bytes(frame)) == "damaged"


@pytest.mark.parametrize("key", [None, KEY])
def test_records_of_another_place_are_foreign(key: bytes | None) -> None:
    codec = Codec(SCOPE, key)
    frame = codec.encode(TENANT, record())
    assert fault(codec, frame, "f" * 32) == "foreign"
    assert fault(Codec(Scope("model", "other"), key), frame) == "foreign"
    assert fault(Codec(Scope("other", "tokenizer"), key), frame) == "foreign"


@pytest.mark.parametrize("key", [None, KEY])
def test_chunks_of_another_place_are_foreign(key: bytes | None) -> None:
    codec = Codec(SCOPE, key)
    blob = np.zeros(2 * CHUNK_BYTES + 5, dtype=np.uint8)
    first, second, third = codec.encode_segment(TENANT, "s", blob)
    for chunks, num_bytes, name in (
        ([second, first, third], len(blob), "s"),
        ([first, third], CHUNK_BYTES + 5, "s"),
        ([first, second, third], len(blob), "t"),
    ):
        with pytest.raises(RecordError) as raised:
            codec.decode_segment(TENANT, name, chunks, num_bytes)
        assert raised.value.fault == "foreign"
    for chunks in ([first, second], [first, second, third, third]):
        with pytest.raises(RecordError, match="damaged: segment s has"):
            codec.decode_segment(TENANT, "s", chunks, len(blob))


def test_kinds_are_not_mixed_up() -> None:
    codec = Codec(SCOPE)
    with pytest.raises(RecordError, match="output of format 1 where one of manifest should be"):
        codec.decode_manifest(TENANT, codec.encode(TENANT, record()))
    assert fault(codec, codec.encode_manifest(TENANT, Manifest("1", (), 0.0))) == "damaged"
    assert fault(codec, codec.encode(TENANT, Deletion(TENANT, None, 0.0))) == "damaged"


def test_text_is_not_readable_without_the_right_key() -> None:
    codec = Codec(SCOPE, KEY)
    frame = codec.encode(TENANT, record(3, "secret-request"))
    assert b"secret-request" in Codec(SCOPE).encode(TENANT, record(3, "secret-request"))
    assert b"secret-request" not in frame
    assert fault(Codec(SCOPE), frame) == "encrypted"
    assert fault(Codec(SCOPE, KEY[::-1]), frame) == "encrypted"
    assert frame != codec.encode(TENANT, record(3, "secret-request"))


def test_an_encrypted_record_cannot_be_moved_or_changed() -> None:
    codec = Codec(SCOPE, KEY)
    frame = bytearray(codec.encode(TENANT, record()))
    other = codec.encode("f" * 32, record())
    # The unencrypted place is changed to another tenant's, but the encrypted part is bound to its own tenant.
    moved = bytes(frame[:12]) + other[12:HEADER_BYTES] + bytes(frame[HEADER_BYTES:])
    assert fault(codec, with_checksum(moved), "f" * 32) == "encrypted"  # each tenant has its own key
    frame[8] ^= 1
    with pytest.raises(RecordError, match="forged: an encrypted record was changed"):
        codec.decode(TENANT, with_checksum(bytes(frame)))


def test_encryption_can_be_turned_on_later() -> None:
    codec = Codec(SCOPE, KEY)
    plain = Codec(SCOPE).encode(TENANT, record())
    assert fields(codec.decode(TENANT, plain)) == fields(record())
    assert codec.num_unencrypted == 1
    codec.decode(TENANT, codec.encode(TENANT, record()))
    assert codec.num_unencrypted == 1


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 32 bytes, got 16"):
        Codec(SCOPE, bytes(16))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(ConfigError, match=r"pip install 'sglang-agentspec\[encryption\]'"):
        Codec(SCOPE, KEY)


def test_keys_are_kept_for_a_bounded_number_of_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentspec.store.encryption._MAX_CACHED_KEYS", 2)
    monkeypatch.setattr("agentspec.store.encryption._MESSAGES_PER_SALT", 2)
    codec = Codec(SCOPE, KEY)
    frames = [(f"{i % 3:032}", codec.encode(f"{i % 3:032}", record(i))) for i in range(9)]
    for i, (namespace, frame) in enumerate(frames):
        assert fields(codec.decode(namespace, frame)) == fields(record(i))
    salts = {frame[HEADER_BYTES : HEADER_BYTES + 16] for _, frame in frames}
    assert len(salts) == 9
