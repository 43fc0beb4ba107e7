"""Step times that outlive a server."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path
from types import SimpleNamespace

import pytest
from draft_states import KEY, profile

from agentspec.integrations.sglang.settings import Settings
from agentspec.integrations.sglang.widths.kept_costs import LEAST_STEPS, KeptCosts
from agentspec.scheduling import Profile, StepCost


def test_what_one_server_keeps_the_next_one_loads(tmp_path: Path) -> None:
    kept = KeptCosts(tmp_path / "new", KEY, {"tp_size": 1})
    assert kept.load() is None
    assert not kept.is_due(LEAST_STEPS - 1) and kept.is_due(LEAST_STEPS)
    known = profile(drafter=StepCost(0.0, 1e-6, 1e-3))
    kept.keep(known, LEAST_STEPS)
    assert not kept.is_due(2 * LEAST_STEPS - 1) and kept.is_due(2 * LEAST_STEPS)
    assert KeptCosts(tmp_path / "new", KEY, {"tp_size": 1}).load() == known
    assert [path.name for path in (tmp_path / "new").iterdir()] == [kept.path.name]


def test_other_servers_load_nothing(tmp_path: Path) -> None:
    KeptCosts(tmp_path, KEY, {"tp_size": 1}).keep(profile(), 1)
    assert KeptCosts(tmp_path, KEY, {"tp_size": 2}).load() is None
    assert KeptCosts(tmp_path, dataclasses.replace(KEY, device="other"), {"tp_size": 1}).load() is None
    assert KeptCosts(tmp_path, dataclasses.replace(KEY, graphs="captured"), {"tp_size": 1}).load() == profile()


def test_two_kinds_of_gpu_keep_two_files(tmp_path: Path) -> None:
    settings = Settings(store=f"sqlite:///{tmp_path}/s.sqlite3")
    args = SimpleNamespace(model_path="m", device="cuda")
    kept = [
        KeptCosts.of(settings, args, dataclasses.replace(KEY, device=gpu))  # type: ignore[arg-type]
        for gpu in ("NVIDIA H200", "NVIDIA L4")
    ]
    assert kept[0] is not None and kept[1] is not None
    assert kept[0].path != kept[1].path


def test_a_file_of_something_else_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = KeptCosts(tmp_path, KEY, {})
    for content in (b"", b"\xff", b"{}"):
        kept.path.write_bytes(content)
        assert kept.load() is None
    dataclasses.replace(profile(), key=dataclasses.replace(KEY, model="other")).save(kept.path)
    assert kept.load() is None
    assert sum(record.name == "agentspec" for record in caplog.records) == 4


def test_a_folder_that_cannot_be_read_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # The test may run as root, whom permissions do not stop.
    assert KeptCosts(tmp_path / ("long" * 100), KEY, {}).load() is None
    assert "cannot be used" in caplog.text


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    kept = KeptCosts(tmp_path / "file", KEY, {})
    kept.keep(profile(), 0)
    assert "cannot be written" in caplog.text
    assert not kept.is_due(10 * LEAST_STEPS)


def test_a_full_disk_keeps_no_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def save(profile: Profile, path: Path) -> None:
        path.write_text("{")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Profile, "save", save)
    KeptCosts(tmp_path, KEY, {}).keep(profile(), 0)
    assert "No space left" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "folder"),
    [
        ({"store": "sqlite:////somewhere/s.sqlite3"}, "/somewhere"),
        ({"store": "sqlite:///relative/a%20b/s.sqlite3"}, "relative/a b"),
        ({"store": ""}, "/data/agentspec"),
        ({"store": "sqlite://"}, "/data/agentspec"),
        ({"store": "redis://127.0.0.1"}, "/data/agentspec"),
        ({"store": "memory://"}, None),
        ({"store": "", "keep_step_times": False}, None),
        ({"store": "", "profiling": True}, None),
    ],
)
def test_the_file_lies_beside_the_store(
    changes: dict[str, object], folder: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    kept = KeptCosts.of(Settings(**changes), SimpleNamespace(model_path="m"), KEY)  # type: ignore[arg-type]
    assert (None if kept is None else str(kept.path.parent)) == folder
