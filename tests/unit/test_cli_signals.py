"""A signal becomes one KeyboardInterrupt; a second one cannot cut a rollback short."""

from __future__ import annotations

import os
import signal

import pytest

from penstock.cli import errors, signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_interrupts_and_later_ones_are_answered(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    rolled_back = False
    with signals.once():
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            rolled_back = True
    assert rolled_back
    assert signals.received() == number
    assert capfd.readouterr().err.count("still rolling back") == 2


def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with signals.once():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_handlers_are_taken_again_only_inside_the_block() -> None:
    before = signal.getsignal(signal.SIGTERM)
    signals.install()
    assert signal.getsignal(signal.SIGTERM) is before


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.once():
            signals.install()  # as after the start of Spark
            os.kill(os.getpid(), signal.SIGHUP)
        assert not signals.taken()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_exit_code_says_which_signal(number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.show_interrupted(number) == code
    said = capsys.readouterr().err
    assert "the run under way was rolled back" in said
    assert "run again what is missing" in said
