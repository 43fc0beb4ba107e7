from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import END, byte_tokenizer, write_byte_tokenizer

from agentspec import ConfigError
from agentspec.analysis.replay import load_tokenizer

TINY_SQL = Path(__file__).parents[4] / "evals" / "models" / "tiny-sql" / "tokenizer.json"
pytest.importorskip("tiktoken", reason="`make setup` installs tiktoken")


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_tekken_ids_begin_after_the_specials(tmp_path: Path) -> None:
    vocab = [{"rank": i, "token_bytes": base64.b64encode(bytes([i])).decode()} for i in range(256)]
    vocab += [
        {"rank": 256, "token_bytes": base64.b64encode(b"ab").decode()},
        # This token lies beyond the model's vocabulary and must not be used.
        {"rank": 257, "token_bytes": base64.b64encode(b"abab").decode()},
    ]
    config = {"pattern": r"\w+|\W", "default_num_special_tokens": 10, "default_vocab_size": 267}
    tokenizer = load_tokenizer(write(tmp_path / "tekken.json", {"config": config, "vocab": vocab}))
    assert tokenizer.encode("abab!").tolist() == [266, 266, 10 + ord("!")]
    assert (tokenizer.vocab_size, tokenizer.end_of_turn) == (267, 2)
    assert tokenizer.encode("").dtype == "int32"


def test_the_default_is_a_tekken_file() -> None:
    pytest.importorskip("mistral_common", reason="`make setup` installs mistral_common")
    tokenizer = load_tokenizer()
    assert tokenizer.name.startswith("tekken_")
    assert tokenizer.vocab_size == 131072
    ids = tokenizer.encode("SELECT name FROM singer")
    assert ids.min() >= 1000
    assert len(ids) < 8
    assert load_tokenizer("mistral-common").name == tokenizer.name, "a package is searched for its tokenizer"


def test_tiktoken_ranks(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_byte_tokenizer(tmp_path))
    assert tokenizer.encode("né\n").tolist() == list("né\n".encode())
    assert (tokenizer.vocab_size, tokenizer.end_of_turn) == (257, END)
    assert load_tokenizer(str(tmp_path)).name == tokenizer.name, "the folder that it lies in"


def test_hugging_face_file_names_its_end_of_turn() -> None:
    pytest.importorskip("tokenizers", reason="`make setup` installs tokenizers")
    tokenizer = load_tokenizer(TINY_SQL)
    ids = tokenizer.encode("SELECT name FROM singer")
    assert len(ids)
    assert ids.max() < tokenizer.vocab_size
    assert 0 <= tokenizer.end_of_turn < tokenizer.vocab_size
    # JSON logs have half of a surrogate pair where an emoji was cut.
    with pytest.raises(UnicodeEncodeError):
        tokenizer.encode("name \ud83d")


def test_names_tell_files_of_one_name_apart(tmp_path: Path) -> None:
    path = write_byte_tokenizer(tmp_path)
    name = load_tokenizer(path).name
    path.write_bytes(path.read_bytes() + base64.b64encode(b"ab") + b" 256\n")
    assert load_tokenizer(path).name != name


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("text.json", b"no json", "is no JSON"),
        ("other.json", b'{"a": 1}', "is another JSON"),
        ("torn.json", b'{"config": {}, "vocab": []}', "not whole"),
        ("bad.tiktoken", b"a b c\n", "token in base64 and its rank"),
        ("gap.tiktoken", b"YQ== 0\nYg== 2\n", "must be 0 to 1, each once"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [(name, "--tokenizer must be") for name in ("no_such_package", "json", "../x", "a b")]
    + [(".", "a model's folder")],
)
def test_what_is_none_is_refused(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(name)


@pytest.mark.parametrize("folder", [TINY_SQL, None])
def test_tokens_are_shown_as_their_text_without_specials(tmp_path: Path, folder: Path | None) -> None:
    tokenizer = load_tokenizer(folder or write_byte_tokenizer(tmp_path))
    text = "SELECT name FROM singer"
    tokens = np.append(tokenizer.encode(text), np.int32(tokenizer.end_of_turn))
    assert tokenizer.decode(tokens) == text
    assert tokenizer.decode(tokens[:0]) == ""


def test_specials_below_the_ranks_are_left_out(tmp_path: Path) -> None:
    vocab = [{"rank": i, "token_bytes": base64.b64encode(bytes([i])).decode()} for i in range(256)]
    config = {"pattern": r"\w+|\W", "default_num_special_tokens": 10, "default_vocab_size": 266}
    tokenizer = load_tokenizer(write(tmp_path / "tekken.json", {"config": config, "vocab": vocab}))
    assert tokenizer.decode(np.array([2, 10 + ord("a"), 266, 10 + 0xFF], np.int32)) == "a\ufffd"


def test_a_tokenizer_that_only_encodes_says_so() -> None:
    with pytest.raises(ConfigError, match="the tokenizer bytes cannot decode"):
        byte_tokenizer().decode(np.zeros(1, np.int32))
