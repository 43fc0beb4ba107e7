"""Corpora: what they are built from, which namespaces draft from them, and which files are refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from engine_texts import by_counts, ids, keep, random_output

from agentspec import ConfigError, DraftRow, Engine, EngineConfig, SegmentError, Source, TokenError
from agentspec.analysis.corpus import Reading, build_corpus, read_documents, read_info

TOKENIZER = "ab" * 32
VOCAB_SIZE = 100


def corpus(path: Path, *documents: Sequence[int]) -> Path:
    build_corpus(path, [ids(*document) for document in documents], vocab_size=VOCAB_SIZE, tokenizer=TOKENIZER)
    return path


def engine(*corpora: Path, **changes: Any) -> Engine:
    """An engine that estimates by counts and drafts from the corpora."""
    settings = {"vocab_size": VOCAB_SIZE, "tokenizer": TOKENIZER, "min_token_prob": 0.0, "estimates": by_counts()}
    made = Engine(EngineConfig(**{**settings, **changes}))
    for path in corpora:
        made.attach_corpus(path)
    return made


def draft(of: Engine, *text: int, namespace: str = "") -> DraftRow:
    of.open("asked", ids(*text), namespace)
    row = of.draft(["asked"]).row(0)
    of.close("asked", keep=False)
    return row


def first_tokens(row: DraftRow) -> list[int]:
    """The tokens that may follow directly, likeliest first."""
    return [int(token) for token, parent in zip(row.tokens, row.parents, strict=True) if parent == 0]


# Drafts -----------------------------------------------------------------------------------------------------------


def test_documents_are_drafted_from(tmp_path: Path) -> None:
    row = draft(engine(corpus(tmp_path / "a", range(1, 10))), 50, 1, 2, 3)
    assert row.tokens.tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert row.parents.tolist() == [-1, 0, 1, 2, 3, 4, 5]
    assert row.sources.tolist() == [Source.ROOT] + [Source.CORPUS] * 6
    assert row.match_len == 3


def test_without_estimates_of_its_own_a_corpus_is_drafted_from_as_outputs_are(tmp_path: Path) -> None:
    """The engine has the default settings, which were fitted without corpora."""
    document = np.random.default_rng(2).permutation(VOCAB_SIZE).tolist()
    made = engine(corpus(tmp_path / "a", document), estimates=None, min_token_prob=EngineConfig().min_token_prob)
    assert draft(made, *document[:8]).tokens.tolist()[:5] == document[7:12]


def test_nothing_is_drafted_from_one_document_into_the_next(tmp_path: Path) -> None:
    made = engine(corpus(tmp_path / "a", (1, 2, 3), (4, 5, 6)))
    assert draft(made, 1, 2).tokens.tolist() == [2, 3]
    assert draft(made, 2, 3).tokens.tolist() == [3]


def test_shorter_patterns_add_what_the_longest_does_not_know(tmp_path: Path) -> None:
    """After 1 2 3 only 4 came; after 3 alone 5 came most often, then 6."""
    made = engine(corpus(tmp_path / "a", (1, 2, 3, 4), *[(9, 3, 5)] * 6, *[(8, 3, 6)] * 3))
    row = draft(made, 1, 2, 3)
    assert row.match_len == 3
    assert set(first_tokens(row)) == {4, 5, 6}
    assert first_tokens(draft(made, 7, 3))[:2] == [5, 6]


def test_a_pattern_of_another_length_is_weighed_only_if_it_says_more(tmp_path: Path) -> None:
    """The pattern 3 occurs only twice as often as the pattern 1 2 3."""
    made = engine(corpus(tmp_path / "a", (1, 2, 3, 4), (9, 3, 5)))
    assert first_tokens(draft(made, 1, 2, 3)) == [4]


@pytest.mark.parametrize("seed", range(5))
def test_two_corpora_are_as_good_as_one(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    documents = [random_output(rng, int(rng.integers(1, 12)), 6).tolist() for _ in range(12)]
    split = int(rng.integers(1, 11))
    parts = engine(corpus(tmp_path / "a", *documents[:split]), corpus(tmp_path / "b", *documents[split:]))
    whole = engine(corpus(tmp_path / "c", *documents))
    for _ in range(20):
        text = random_output(rng, 5, 6).tolist()
        got, expected = draft(parts, *text), draft(whole, *text)
        assert got.match_len == expected.match_len
        assert sorted(first_tokens(got)) == sorted(first_tokens(expected))
        np.testing.assert_allclose(np.sort(got.estimates), np.sort(expected.estimates), rtol=1e-5)


def test_a_corpus_counts_beside_what_was_said(tmp_path: Path) -> None:
    """In the output 2 follows 1 once; in the corpus 3 follows 1 four times."""
    made = engine(corpus(tmp_path / "a", *[(1, 3)] * 4))
    keep(made, ids(1, 2))
    row = draft(made, 1)
    sources = dict(zip(row.tokens.tolist(), row.sources.tolist(), strict=True))
    assert (sources[3], sources[2]) == (Source.CORPUS, Source.GLOBAL)


def test_drafts_follow_a_growing_text(tmp_path: Path) -> None:
    """Drafts stay right however many tokens the text has grown by since the previous draft."""
    document = np.random.default_rng(1).permutation(80).tolist()
    made = engine(corpus(tmp_path / "a", document), max_draft_tokens=3)
    made.open("a", ids(99, *document[:1]))
    at = 1
    for step in (1, 2, 5, 6, 7, 20, 1, 30):
        made.extend("a", ids(*document[at : at + step]))
        at += step
        assert made.draft(["a"]).tokens.tolist() == document[at - 1 : at + 3]


# Who drafts from corpora ------------------------------------------------------------------------------------------


def test_attaching_a_file_again_replaces_it(tmp_path: Path) -> None:
    path = corpus(tmp_path / "a", (1, 2))
    made = engine(path)
    made.open("open", ids(1), "tenant")
    assert made.draft(["open"]).tokens.tolist() == [1, 2]
    corpus(path, (1, 3))
    assert made.draft(["open"]).tokens.tolist() == [1, 2], "what is mapped stays what it was"
    made.attach_corpus(path, ["tenant"])
    assert made.draft(["open"]).tokens.tolist() == [1, 3]
    assert draft(made, 1, namespace="another").tokens.tolist() == [1]
    assert made.stats().corpora == 1


def test_clearing_what_was_said_leaves_corpora(tmp_path: Path) -> None:
    made = engine(corpus(tmp_path / "a", (1, 2)))
    made.clear()
    assert draft(made, 1).tokens.tolist() == [1, 2]


def test_a_rule_without_corpora_refuses_them(tmp_path: Path) -> None:
    made = engine(rule="suffixdecoding")
    with pytest.raises(ConfigError, match="corpora need the rule 'calibrated', got 'suffixdecoding'"):
        made.attach_corpus(corpus(tmp_path / "a", (1, 2)))


def test_a_string_is_no_list_of_namespaces(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got the string 'tenant'; pass a list"):
        engine().attach_corpus(corpus(tmp_path / "a", (1, 2)), "tenant")


# Files that are refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"tokenizer": "cd" * 32},
            r"foreign: it holds a corpus of 100 token ids of tokenizer abab\w+, required.* cdcd",
        ),
        ({"vocab_size": 99}, "foreign: it holds a corpus of 100 token ids .*, required were a corpus of 99 token ids"),
    ],
    ids=["tokenizer", "vocabulary"],
)
def test_corpora_of_another_tokenizer_are_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    path = corpus(tmp_path / "code.corpus", (1, 2))
    with pytest.raises(SegmentError, match=rf"code\.corpus' cannot be used: the segment is {named}"):
        engine(path, **changes)


def test_a_larger_vocabulary_of_the_same_tokenizer_is_accepted(tmp_path: Path) -> None:
    """Models pad their vocabularies."""
    assert draft(engine(corpus(tmp_path / "a", (1, 2)), vocab_size=128), 1).tokens.tolist() == [1, 2]


def test_outputs_are_no_corpus_and_a_corpus_is_no_outputs(tmp_path: Path) -> None:
    made = engine(max_growing_tokens=64)
    keep(made, np.arange(70, dtype=np.int32))
    made.flush()
    (tmp_path / "outputs").write_bytes(made.snapshot("").segments[0].blob)
    with pytest.raises(SegmentError, match="it holds outputs .*, required were a corpus"):
        made.attach_corpus(tmp_path / "outputs")
    with pytest.raises(SegmentError, match="it holds a corpus .*, required were outputs"):
        made.load_segments("", [corpus(tmp_path / "a", (1, 2)).read_bytes()])


def test_truncated_files_are_refused_at_every_length(tmp_path: Path) -> None:
    content = corpus(tmp_path / "a", (1, 2, 3), (4, 5)).read_bytes()
    made, path = engine(), tmp_path / "cut"
    for length in {*range(0, len(content), 37), len(content) - 1}:
        path.write_bytes(content[:length])
        with pytest.raises(SegmentError, match=r"cut' cannot be used: (not a segment|the segment is truncated)"):
            made.attach_corpus(path)
    assert made.stats().corpora == 0


def test_damaged_files_are_refused_wherever_the_damage_is(tmp_path: Path) -> None:
    content = corpus(tmp_path / "a", (1, 2, 3), (4, 5)).read_bytes()
    made, path = engine(corpus(tmp_path / "good", (1, 2))), tmp_path / "bad"
    for at in range(0, len(content), 13):
        path.write_bytes(content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :])
        with pytest.raises(SegmentError, match=r"bad' cannot be used: "):
            made.attach_corpus(path)
    assert draft(made, 1).tokens.tolist() == [1, 2]


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SegmentError, match=r"none': No such file"):
        engine(tmp_path / "none")
    with pytest.raises(SegmentError, match="is not a regular file"):
        engine(tmp_path)


# Building ---------------------------------------------------------------------------------------------------------


def read(path: Path) -> tuple[list[list[int]], Reading]:
    reading = Reading()
    return [document.tolist() for document in read_documents([path], byte_tokenizer(), reading)], reading


def test_texts_lines_and_arrays_are_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hi")
    (tmp_path / "b.jsonl").write_text('{"text": "yo"}\n\n{"tokens": [1, 256]}\n{"text": ""}\n{"tokens": []}\n')
    (tmp_path / "deep").mkdir()
    np.save(tmp_path / "deep" / "c.npy", np.array([7, 8], np.uint16))
    (tmp_path / "empty.md").write_text("")
    documents, reading = read(tmp_path)
    assert documents == [[104, 105], [121, 111], [1, 256], [7, 8]]
    assert (reading.documents, reading.tokens, reading.bad) == (4, 8, [])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Expecting property name"),
        ("[" * 100_000, "recursion"),
        ("[1, 2]", "must be an object with `text`, a string, or `tokens`"),
        ('{"text": 7}', "must be an object with `text`, a string, or `tokens`"),
        ('{"text": "\\ud800"}', "surrogates not allowed"),
        ('{"tokens": "12"}', "must be an object with `text`, a string, or `tokens`"),
        ('{"tokens": [1, 257]}', r"in \[0, 257\), got 1 to 257"),
        ('{"tokens": [-1]}', r"in \[0, 257\), got -1 to -1"),
        ('{"tokens": [1.0]}', r"1-D array of integers, got float64\[1\]"),
        ('{"tokens": [true]}', "1-D array of integers"),
        ('{"tokens": [[1]]}', r"1-D array of integers, got int64\[1, 1\]"),
        ('{"tokens": [[1], [1, 2]]}', "inhomogeneous"),
        (f'{{"tokens": [{2**70}]}}', "1-D array of integers, got object"),
        (f'{{"tokens": [{2**64 - 1}]}}', r"in \[0, 257\)"),
    ],
    ids=lambda text: str(text)[:24],
)
def test_bad_lines_are_counted_named_and_skipped(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text(f'{{"text": "a"}}\n{line}\n{{"text": "b"}}\n')
    documents, reading = read(path)
    assert documents == [[97], [98]]
    assert (reading.documents, len(reading.bad)) == (2, 1)
    assert reading.bad[0].startswith(f"{path}:2: ")
    assert re.search(reason, reading.bad[0]), reading.bad


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.txt", b"\xff\xfe\x00", "codec can't decode"),
        ("a.npy", b"", "EOF"),
        ("a.npy", b"PK\x03\x04", "magic string"),
        ("a.jsonl", b"\xff\n", "codec can't decode"),
    ],
)
def test_bad_files_are_counted_named_and_skipped(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "good.txt").write_text("a")
    documents, reading = read(tmp_path)
    assert documents == [[97]]
    (bad,) = reading.bad
    assert bad.startswith(str(tmp_path / name))
    assert reason in bad


def test_arrays_of_objects_are_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}]), allow_pickle=True)
    documents, reading = read(tmp_path)
    assert (documents, len(reading.bad)) == ([], 1)


def test_a_corpus_says_what_it_holds(tmp_path: Path) -> None:
    info = read_info(corpus(tmp_path / "a", (1, 2, 3), (4, 5)))
    assert (info.kind, info.documents, info.tokens, info.vocab_size) == ("corpus", 2, 5, VOCAB_SIZE)
    assert info.tokenizer == TOKENIZER
    assert info.bytes == (tmp_path / "a").stat().st_size


def test_a_corpus_needs_no_larger_vocabulary_than_it_uses(tmp_path: Path) -> None:
    """A tokenizer's file may name more ids than the served model has."""
    build_corpus(tmp_path / "a", [ids(5, 41), ids(7)], tokenizer=TOKENIZER)
    assert read_info(tmp_path / "a").vocab_size == 42
    assert draft(engine(tmp_path / "a", vocab_size=42), 5).tokens.tolist() == [5, 41]


def test_a_corpus_of_nothing_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one document at least, got none"):
        corpus(tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_a_failed_build_leaves_the_old_corpus(tmp_path: Path) -> None:
    path = corpus(tmp_path / "a", (1, 2))
    before = path.read_bytes()
    for token in (-7, VOCAB_SIZE):
        with pytest.raises(TokenError, match=rf"in \[0, 100\), got {token}"):
            corpus(path, (1, token))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
