"""The process that runs the author's code, and how the worker calls it (`streams.author.calls`).

    worker                                              step process (`streams.author.step_server`)
    a pool thread  --- its own connection ---------->   a thread that serves it: one call at a time
                   <-- results as they come, the end -- on a `LocalAuthor`

The worker hands each new connection over a control socket. That socket is also the tie of the two lives: when the worker is gone, however it
went, the control socket ends and so does the step process. When the author's code takes the step process down (a crash of native code, memory),
the calls under way fail with `StepProcessEnded`, and the next call finds a new process.

A call is a message; it is answered by any number of `Some` (results so far, at least every 50 ms while there are new ones) and one `Ended`
or `Raised`. A call that never ends keeps its thread on both sides, as in `streams.engine.pool`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue

import msgspec
import structlog

from schemas.errors import StepError, UsageError
from streams.author.calls import BeforeEach, Items, StreamRequest, SuffixResult
from streams.author.errors import StepProcessEnded
from streams.author.messages import (
    READY,
    CloseItemsCall,
    Ended,
    ProjectCall,
    PullItemsCall,
    Raised,
    RunSegmentCall,
    RunSuffixesCall,
    Some,
    StepCall,
    StepFailure,
    decode_response,
    encode,
)
from streams.process.launcher import import_path
from topologies.pipeline.items import SourceItem
from topologies.pipeline.shapes import Misshapen, Shape, Shaped, Unshaped
from topologies.reading.choice import PipelineChoice

logger = structlog.get_logger("kawait.steps")

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
STEP_SERVER = f"{__spec__.parent}.step_server"


class StepsFailed(StepError):
    """An error of the author's code that was raised in the step process."""

    def __init__(self, failed: StepFailure) -> None:
        self.code = failed.code
        self.retryable = failed.retryable
        self.step_id = failed.step_id
        super().__init__(failed.message)


class StepProcess:
    """BeforeEach the step process, and starts it again when it ended; a `streams.author.calls.Author`.

    Args:
        choice: The pipeline, as the worker loads it; the step process loads it by itself.
    """

    def __init__(self, choice: PipelineChoice) -> None:
        self._choice = choice
        self._changing = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_ready = False
        self._is_closed = False
        self._local = threading.local()
        self._numbers = itertools.count(1)
        self._forgotten: SimpleQueue[int] = SimpleQueue()
        with self._changing:
            self._start()

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        assert self._process is not None
        return self._process.pid

    def wait_ready(self) -> None:
        """Wait until it takes calls.

        Raises:
            UsageError: it does not.
        """
        try:
            with self._changing:
                self._ensure()
        except StepProcessEnded as error:
            raise UsageError(f"{error}; what it said stands above") from error

    def close(self) -> None:
        """End it; calls under way fail."""
        with self._changing:
            self._is_closed = True
            if self._control is not None:
                self._control.close()
                self._control = None
            process = self._process
        if process is None:
            return
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    # --- calls -------------------------------------------------------------------------------------------------------------------------

    def project(self, answers: Sequence[Unshaped], shapes: list[Shape], before_each: BeforeEach) -> None:
        """Shape answers, appending to `shapes`."""

        def take(some: Some) -> None:
            for completion, answer, detail in some.shapes:
                shapes.append(Shaped(completion, answer) if detail is None else Misshapen(detail))

        self._call(ProjectCall(list(answers)), take, before_each)

    def run_suffixes(
        self, await_index: int, completions: Sequence[bytes], outcomes: list[SuffixResult], before_each: BeforeEach
    ) -> None:
        """Run the suffix on each completion, appending to `outcomes`."""

        def take(some: Some) -> None:
            outcomes.extend(made if isinstance(made, list) else StepsFailed(made) for made in some.outcomes)

        self._call(RunSuffixesCall(await_index, list(completions)), take, before_each)

    def open_items(self, asked: StreamRequest) -> Items:
        """The items that enter an await."""
        return _Items(self, next(self._numbers), asked)

    def run_segment(self, first: int, stop: int, payloads: Sequence[bytes], *, many: bool) -> tuple[bytes, bool]:
        """As `streams.author.segments.run_segment`."""
        ended = self._call(RunSegmentCall(first, stop, list(payloads), many))
        return ended.output, ended.streams

    def pull(self, asked: PullItemsCall) -> tuple[list[SourceItem], bool]:
        """For `_Items`."""
        ended = self._call(asked)
        return ended.items, ended.has_ended

    def forget(self, stream: int) -> None:
        """Let the step process forget a stream; it is told together with the next call, whichever that is."""
        self._forgotten.put(stream)

    def _call(
        self, asked: StepCall, take: Callable[[Some], None] = lambda _some: None, before_each: BeforeEach = lambda: None
    ) -> Ended:
        """One call on this thread's connection.

        Raises:
            StepsFailed: the author's code raised.
            StepProcessEnded: the process ended before the call did.
        """
        connection = self._connection()
        before_each()
        try:
            while not self._forgotten.empty():
                with contextlib.suppress(Empty):  # another thread may tell it
                    connection.send_bytes(encode(CloseItemsCall(self._forgotten.get_nowait())))
            connection.send_bytes(encode(asked))
            while True:
                answer = decode_response(connection.recv_bytes())
                if isinstance(answer, Some):
                    take(answer)
                    before_each()
                    continue
                take(answer.rest)
                if isinstance(answer, Raised):
                    raise StepsFailed(answer.error)
                return answer
        except (EOFError, OSError) as error:
            self._local.connection = None
            raise StepProcessEnded(f"the process that ran the steps ended {self._said_why()}") from error

    def _said_why(self) -> str:
        process = self._process
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(1.0) if process is not None else 0
            return f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return "its connection"

    def _connection(self) -> Connection:
        """This thread's connection; a new one after the process ended."""
        known: tuple[subprocess.Popen[bytes], Connection] | None = getattr(self._local, "connection", None)
        if known is not None and known[0] is self._process:
            return known[1]
        with self._changing:
            process, control = self._ensure()
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    socket.send_fds(control, [b"c"], [theirs.fileno()])
                except OSError as error:
                    ours.close()
                    raise StepProcessEnded("the process of the steps ended before it could be called") from error
            connection = Connection(ours.detach())
        self._local.connection = (process, connection)
        return connection

    # --- the process, under `_changing` ---------------------------------------------------------------------------------------------------

    def _ensure(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """A process that is ready."""
        if self._is_closed:
            raise StepProcessEnded("this worker is stopping")
        if self._process is not None and self._process.poll() is not None:
            logger.error("the process of the steps ended; starting another", exit_code=self._process.returncode)
            self._start()
        assert self._process is not None
        assert self._control is not None
        if not self._is_ready:
            with contextlib.suppress(OSError):  # ended, or said nothing in time
                self._is_ready = self._control.recv(1) == READY
            if not self._is_ready:
                self._process.kill()
                self._process.wait()
                raise StepProcessEnded("the process of the steps did not start")
        return self._process, self._control

    def _start(self) -> None:
        if self._control is not None:
            self._control.close()
        self._is_ready = False
        ours, theirs = socket.socketpair()
        ours.settimeout(READY_TIMEOUT_S)
        with theirs:
            # `-P`: the current folder may hold a package named like one of ours.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", STEP_SERVER, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": import_path(os.environ)},
            )
        self._control = ours
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:  # overrides may be secret: no arguments
            pipe.write(msgspec.json.encode(self._choice, enc_hook=str))


class _Items:
    """A stream that is kept in the step process."""

    def __init__(self, process: StepProcess, number: int, asked: StreamRequest) -> None:
        self._process = process
        self._number = number
        self._asked: StreamRequest | None = asked

    def pull(self, count: int) -> tuple[list[SourceItem], bool]:
        """The next items, at most `count`, and whether the stream has ended with them."""
        asked, self._asked = self._asked, None
        return self._process.pull(PullItemsCall(self._number, count, asked))

    def close(self) -> None:
        """Nobody will pull any more."""
        self._process.forget(self._number)
