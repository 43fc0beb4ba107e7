from __future__ import annotations

from pathlib import Path

import pytest
from byte_tokenizer import write_byte_tokenizer

from agentspec import ConfigError
from agentspec.analysis.report import find_tokenizer

pytest.importorskip("tiktoken", reason="`make setup` installs tiktoken")


def test_a_file_and_the_folder_it_lies_in_are_the_same_tokenizer(tmp_path: Path) -> None:
    path = write_byte_tokenizer(tmp_path)
    assert find_tokenizer(str(path)).name == find_tokenizer(str(tmp_path)).name
    assert find_tokenizer(str(path)).vocab_size == 257


def test_a_package_is_searched_for_its_tokenizer() -> None:
    pytest.importorskip("mistral_common", reason="`make setup` installs mistral_common")
    assert find_tokenizer("mistral-common").name == find_tokenizer(None).name


@pytest.mark.parametrize("name", ["no_such_package", "json", "../x", "a b"])
def test_what_is_none_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="--tokenizer must be"):
        find_tokenizer(name)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="folder"):
        find_tokenizer(str(tmp_path))
