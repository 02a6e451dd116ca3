"""Ctrl-C and SIGTERM: a request to end well, then an order to end at once."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

from typing_extensions import Self

from surefoot import distributed

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While it is entered, the first signal only sets `requested`; the second raises KeyboardInterrupt.

    Signals belong to the main thread; in any other this does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {s: signal.signal(s, self._handle) for s in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        if distributed.is_main():
            sys.stderr.write("\nStopping after this iteration; once more stops at once, without saving.\n")
