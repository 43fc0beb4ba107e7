from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from made_up_time import MadeUpTime

from agentspec.integrations.emulated_device.device.clock import undisturbed

BUSY = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


def test_time_passes_but_for_what_is_left_out_and_with_what_is_charged(made_up_time: MadeUpTime) -> None:
    clock = made_up_time.clock()
    start = clock.now()
    made_up_time.seconds += 2.0
    clock.exclude(0.5)
    clock.charge(0.25)
    assert clock.now() - start == pytest.approx(1.75)
    assert (clock.excluded, clock.charged, clock.launching) == (0.5, 0.25, 0.25)


def test_the_clock_stands_between_stop_and_start_however_often_they_are_nested(made_up_time: MadeUpTime) -> None:
    clock = made_up_time.clock()
    start = clock.now()
    clock.stop()
    made_up_time.seconds += 1.0
    clock.stop()
    made_up_time.seconds += 1.0
    clock.exclude(0.5)
    clock.start()
    made_up_time.seconds += 1.0
    assert clock.stands
    assert clock.now() == start
    clock.start()
    assert not clock.stands
    assert clock.now() == pytest.approx(start)
    made_up_time.seconds += 1.0
    assert clock.now() == pytest.approx(start + 1.0)


def test_who_wakes_up_too_late_has_not_waited_longer(made_up_time: MadeUpTime) -> None:
    clock = made_up_time.clock()
    made_up_time.late = 0.3
    start = clock.now()
    assert clock.sleep_until(start + 1.0) == pytest.approx(1.0)
    assert clock.now() == pytest.approx(start + 1.0)


def test_time_in_which_another_thread_has_the_core_does_not_pass() -> None:
    core = {min(os.sched_getaffinity(0))}
    # Several processes that keep the core busy.
    others = [subprocess.Popen([sys.executable, "-c", BUSY, str(*core)]) for _ in range(2)]
    kept = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, core)
        seconds = undisturbed()
        time.sleep(0.3)
        began, began_wall, began_cpu = seconds(), time.perf_counter(), time.thread_time()
        while time.perf_counter() < began_wall + 0.5:
            pass
        passed, cpu = seconds() - began, time.thread_time() - began_cpu
        assert passed == pytest.approx(cpu, rel=0.2)
        assert passed < 0.45
        before = seconds()
        time.sleep(0.1)
        assert seconds() - before >= 0.09
    finally:
        os.sched_setaffinity(0, kept)
        for other in others:
            other.kill()
            other.wait()


def test_waiting_lets_time_pass_also_where_it_is_left_out(made_up_time: MadeUpTime) -> None:
    clock = made_up_time.clock()
    start = clock.now()
    clock.stop()
    made_up_time.seconds += 5.0
    assert clock.sleep_until(start + 1.0) == pytest.approx(1.0)
    assert clock.now() == pytest.approx(start + 1.0)
    clock.start()
    assert clock.now() == pytest.approx(start + 1.0)
    assert clock.launching == 0.0
