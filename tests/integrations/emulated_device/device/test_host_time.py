from __future__ import annotations

import sys
import threading
import time
import types

import pytest
from made_up_time import MadeUpTime

from agentspec.integrations.emulated_device.device.clock import use_emulated_time


def test_code_that_measures_itself_sees_emulated_seconds_on_the_schedulers_thread(
    made_up_time: MadeUpTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("agentspec.made_up")
    module.time = time  # type: ignore[attr-defined]
    # The clock may change only this module, because other tests use the other modules of agentspec.
    loaded = {name: value for name, value in sys.modules.items() if not name.startswith("agentspec.")}
    monkeypatch.setattr(sys, "modules", {**loaded, "agentspec.made_up": module})
    clock = made_up_time.clock()
    assert use_emulated_time(clock) == ["agentspec.made_up"]
    assert module.time is not time
    before = module.time.perf_counter()
    made_up_time.seconds += 2.0
    clock.exclude(1.5)
    assert module.time.perf_counter() - before == pytest.approx(0.5)
    assert module.time.monotonic() == pytest.approx(time.monotonic(), abs=5)
    elsewhere: list[float] = []
    thread = threading.Thread(target=lambda: elsewhere.append(module.time.perf_counter()))
    thread.start()
    thread.join()
    assert elsewhere[0] == pytest.approx(time.perf_counter(), abs=5)
