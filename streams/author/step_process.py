"""The process that runs the author's code, and how the worker calls it (`streams.author.calls`).

    worker                                              step process (python -m streams.author.step_process)
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
import gc
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

import msgspec
import structlog

from schemas.errors import KawaitError, StepError, UsageError
from streams.author.calls import Author, Items, LocalAuthor, Outcome, Starts, StepProcessEnded, StreamAsked
from streams.author.segments import describe_error
from streams.author.shaping import Unshaped
from streams.settings import PipelineChoice
from topologies.decisions.admission import Misshapen, Shape, Shaped
from topologies.decisions.dispatch import SourceItem

logger = structlog.get_logger("kawait.steps")

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
FLUSH_S = 0.050
"""How long a result may stay in the step process while its call goes on."""
COLLECT_FROM_OBJECTS = 50_000
"""Young objects before the garbage collector looks at them, as in the worker."""

_ROOT: Final = Path(__file__).parents[2]
_READY: Final = b"r"


# --- messages ------------------------------------------------------------------------------------------------------------------------


class Failed(msgspec.Struct, frozen=True, tag=True):
    """An item's suffix failed (`streams.author.segments.describe_error`)."""

    code: str
    message: str
    retryable: bool


class Project(msgspec.Struct, frozen=True, tag=True):
    """Call of `Author.project`."""

    answers: list[Unshaped]


class RunSuffixes(msgspec.Struct, frozen=True, tag=True):
    """Call of `Author.run_suffixes`."""

    await_index: int
    completions: list[bytes]


class RunSegment(msgspec.Struct, frozen=True, tag=True):
    """Call of `Author.run_segment`."""

    first: int
    stop: int
    payloads: list[bytes]
    many: bool


class PullItems(msgspec.Struct, frozen=True, tag=True):
    """Call of `Items.pull`; `asked` is there the first time only."""

    stream: int
    count: int
    asked: StreamAsked | None


class CloseItems(msgspec.Struct, frozen=True, tag=True):
    """Forget a stream; has no answer."""

    stream: int


ShapeSent = tuple[bytes | None, bytes | None, str | None]
"""completion, answer, detail of `Misshapen`."""


class Some(msgspec.Struct, frozen=True, tag=True):
    """Results of a call that goes on, or its last ones."""

    shapes: list[ShapeSent] = []
    outcomes: list[list[bytes] | Failed] = []


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The end of a call with what is left of its results."""

    rest: Some = Some()
    output: bytes = b""
    streams: bool = False
    items: list[SourceItem] = []
    has_ended: bool = False


class Raised(msgspec.Struct, frozen=True, tag=True):
    """The end of a call by an error."""

    rest: Some
    error: Failed


Call = Project | RunSuffixes | RunSegment | PullItems | CloseItems
Answer = Some | Ended | Raised

_encode = msgspec.msgpack.Encoder().encode
_decode_call = msgspec.msgpack.Decoder(Call).decode
_decode_answer = msgspec.msgpack.Decoder(Answer).decode


class StepsFailed(StepError):
    """An error of the author's code that was raised in the step process."""

    def __init__(self, failed: Failed) -> None:
        self.code = failed.code
        self.retryable = failed.retryable
        super().__init__(failed.message)


# --- the worker's side -----------------------------------------------------------------------------------------------------------------


class StepProcess:
    """Starts the step process, and starts it again when it ended; a `streams.author.calls.Author`.

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

    def project(self, answers: Sequence[Unshaped], shapes: list[Shape], starts: Starts) -> None:
        """Shape answers, appending to `shapes`."""

        def take(some: Some) -> None:
            for completion, answer, detail in some.shapes:
                shapes.append(Shaped(completion, answer) if detail is None else Misshapen(detail))

        self._call(Project(list(answers)), take, starts)

    def run_suffixes(
        self, await_index: int, completions: Sequence[bytes], outcomes: list[Outcome], starts: Starts
    ) -> None:
        """Run the suffix on each completion, appending to `outcomes`."""

        def take(some: Some) -> None:
            outcomes.extend(made if isinstance(made, list) else StepsFailed(made) for made in some.outcomes)

        self._call(RunSuffixes(await_index, list(completions)), take, starts)

    def open_items(self, asked: StreamAsked) -> Items:
        """The items that enter an await."""
        return _Items(self, next(self._numbers), asked)

    def run_segment(self, first: int, stop: int, payloads: Sequence[bytes], *, many: bool) -> tuple[bytes, bool]:
        """As `streams.author.segments.run_segment`."""
        ended = self._call(RunSegment(first, stop, list(payloads), many))
        return ended.output, ended.streams

    def pull(self, asked: PullItems) -> tuple[list[SourceItem], bool]:
        """For `_Items`."""
        ended = self._call(asked)
        return ended.items, ended.has_ended

    def forget(self, stream: int) -> None:
        """For `_Items`: told with the next call, whose ever."""
        self._forgotten.put(stream)

    def _call(
        self, asked: Call, take: Callable[[Some], None] = lambda _some: None, starts: Starts = lambda: None
    ) -> Ended:
        """One call on this thread's connection.

        Raises:
            StepsFailed: the author's code raised.
            StepProcessEnded: the process ended before the call did.
        """
        connection = self._connection()
        starts()
        try:
            while not self._forgotten.empty():
                with contextlib.suppress(Empty):  # another thread may tell it
                    connection.send_bytes(_encode(CloseItems(self._forgotten.get_nowait())))
            connection.send_bytes(_encode(asked))
            while True:
                answer = _decode_answer(connection.recv_bytes())
                if isinstance(answer, Some):
                    take(answer)
                    starts()
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
                self._is_ready = self._control.recv(1) == _READY
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
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs:
            # `-P`: the current folder may hold a package named like one of ours.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "streams.author.step_process", str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        self._control = ours
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:  # overrides may be secret: no arguments
            pipe.write(msgspec.json.encode(self._choice, enc_hook=str))


class _Items:
    """A stream that is kept in the step process."""

    def __init__(self, process: StepProcess, number: int, asked: StreamAsked) -> None:
        self._process = process
        self._number = number
        self._asked: StreamAsked | None = asked

    def pull(self, count: int) -> tuple[list[SourceItem], bool]:
        """The next items, at most `count`, and whether the stream has ended with them."""
        asked, self._asked = self._asked, None
        return self._process.pull(PullItems(self._number, count, asked))

    def close(self) -> None:
        """Nobody will pull any more."""
        self._process.forget(self._number)


# --- the step process's side -------------------------------------------------------------------------------------------------------------


class _Filling:
    """A call under way, whose results are sent as they come."""

    def __init__(self, connection: Connection) -> None:
        self.shapes: list[Shape] = []
        self.outcomes: list[Outcome] = []
        self._connection = connection
        self._sent = 0
        self._sending = threading.Lock()
        self._is_over = False

    def flush(self) -> None:
        """Send what is new."""
        with self._sending:
            if self._is_over:
                return
            some = self._rest()
            if some is not _NOTHING:
                self._connection.send_bytes(_encode(some))

    def end(self, answer: Callable[[Some], Ended | Raised]) -> None:
        """Send what is new, and the end."""
        with self._sending:
            self._is_over = True
            self._connection.send_bytes(_encode(answer(self._rest())))

    def _rest(self) -> Some:
        made = len(self.shapes) + len(self.outcomes)
        if made == self._sent:
            return _NOTHING
        first, self._sent = self._sent, made
        return Some(
            [_shape_sent(shape) for shape in self.shapes[first:]],
            [_outcome_sent(outcome) for outcome in self.outcomes[first:]],
        )


_NOTHING: Final = Some()


def _shape_sent(shape: Shape) -> ShapeSent:
    return (shape.completion, shape.answer, None) if isinstance(shape, Shaped) else (None, None, shape.detail)


def _outcome_sent(outcome: Outcome) -> list[bytes] | Failed:
    return outcome if isinstance(outcome, list) else Failed(*describe_error(outcome))


class Server:
    """Serves connections with an `Author`."""

    def __init__(self, author: Author) -> None:
        self._author = author
        self._streams: dict[int, Items] = {}
        self._filling: dict[int, _Filling] = {}

    def run(self, control: socket.socket) -> None:
        """Take connections until the worker is gone."""
        threading.Thread(target=self._flush, name="kawait-flush", daemon=True).start()
        while True:
            message, descriptors, _flags, _address = socket.recv_fds(control, 1, 1)
            if not message:
                return
            connection = Connection(descriptors[0])
            threading.Thread(target=self._serve, args=(connection,), name="kawait-steps", daemon=True).start()

    def _flush(self) -> None:
        while True:
            time.sleep(FLUSH_S)
            for filling in list(self._filling.values()):
                with contextlib.suppress(OSError):
                    filling.flush()

    def _serve(self, connection: Connection) -> None:
        """Answer the calls of one connection."""
        with connection, contextlib.suppress(EOFError, OSError):
            while True:
                call = _decode_call(connection.recv_bytes())
                if isinstance(call, CloseItems):
                    self._streams.pop(call.stream, None)
                    continue
                self._answer(connection, call)

    def _answer(self, connection: Connection, call: Call) -> None:
        filling = _Filling(connection)
        key = id(filling)
        self._filling[key] = filling
        try:
            ended = self._run(call, filling)
        except BaseException as error:
            failed = Failed(*describe_error(error))
            filling.end(lambda rest: Raised(rest, failed))
        else:
            filling.end(lambda rest: msgspec.structs.replace(ended, rest=rest))
        finally:
            del self._filling[key]

    def _run(self, call: Call, filling: _Filling) -> Ended:
        match call:
            case Project():
                self._author.project(call.answers, filling.shapes, _nothing)
                return Ended()
            case RunSuffixes():
                self._author.run_suffixes(call.await_index, call.completions, filling.outcomes, _nothing)
                return Ended()
            case RunSegment():
                output, streams = self._author.run_segment(call.first, call.stop, call.payloads, many=call.many)
                return Ended(output=output, streams=streams)
            case PullItems():
                items, has_ended = self._stream(call).pull(call.count)
                return Ended(items=items, has_ended=has_ended)
            case _:
                raise AssertionError(call)

    def _stream(self, call: PullItems) -> Items:
        if call.asked is not None:
            self._streams[call.stream] = self._author.open_items(call.asked)
        stream = self._streams.get(call.stream)
        if stream is None:
            raise StepProcessEnded("the stream was lost with the process that read it")
        return stream


def _nothing() -> None:
    """Time limits are kept by the worker."""


def main() -> None:
    """Load the pipeline that stands on stdin and serve until the worker is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the worker decides when to end
        signal.signal(number, signal.SIG_IGN)
    choice = msgspec.json.decode(sys.stdin.buffer.read(), type=PipelineChoice, dec_hook=lambda kind, text: kind(text))
    control = socket.socket(fileno=int(sys.argv[1]))
    try:
        author = LocalAuthor(choice.load(os.environ))
    except KawaitError as error:
        sys.exit(f"the process of the steps: {error}")
    gc.freeze()
    gc.set_threshold(COLLECT_FROM_OBJECTS, 20, 100)
    control.send(_READY)
    Server(author).run(control)
    os._exit(0)  # a thread of the author's may never end


if __name__ == "__main__":
    main()
