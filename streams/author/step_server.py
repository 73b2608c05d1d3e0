"""The step process itself: it serves the author's code to one worker (`python -m`)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Final

import msgspec

from schemas.errors import KawaitError
from streams.author.calls import Author, Items, SuffixResult
from streams.author.errors import StepProcessEnded, describe_error
from streams.author.local import LocalAuthor
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
    decode_call,
    encode,
    outcome_sent,
    shape_sent,
)
from streams.process.interpreter import collect_less
from topologies.pipeline.shapes import Shape
from topologies.reading.choice import PipelineChoice

FLUSH_S = 0.050
"""How long a result may stay in the step process while its call goes on."""


_NOTHING: Final = Some()


class _Filling:
    """A call under way, whose results are sent as they come."""

    def __init__(self, connection: Connection) -> None:
        self.shapes: list[Shape] = []
        self.outcomes: list[SuffixResult] = []
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
                self._connection.send_bytes(encode(some))

    def end(self, answer: Callable[[Some], Ended | Raised]) -> None:
        """Send what is new, and the end."""
        with self._sending:
            self._is_over = True
            self._connection.send_bytes(encode(answer(self._rest())))

    def _rest(self) -> Some:
        made = len(self.shapes) + len(self.outcomes)
        if made == self._sent:
            return _NOTHING
        first, self._sent = self._sent, made
        return Some(
            [shape_sent(shape) for shape in self.shapes[first:]],
            [outcome_sent(outcome) for outcome in self.outcomes[first:]],
        )


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
                call = decode_call(connection.recv_bytes())
                if isinstance(call, CloseItemsCall):
                    self._streams.pop(call.stream, None)
                    continue
                self._answer(connection, call)

    def _answer(self, connection: Connection, call: StepCall) -> None:
        filling = _Filling(connection)
        key = id(filling)
        self._filling[key] = filling
        try:
            ended = self._run(call, filling)
        except BaseException as error:
            failed = StepFailure(*describe_error(error))
            filling.end(lambda rest: Raised(rest, failed))
        else:
            filling.end(lambda rest: msgspec.structs.replace(ended, rest=rest))
        finally:
            del self._filling[key]

    def _run(self, call: StepCall, filling: _Filling) -> Ended:
        match call:
            case ProjectCall():
                self._author.project(call.answers, filling.shapes, _no_limit)
                return Ended()
            case RunSuffixesCall():
                self._author.run_suffixes(call.await_index, call.completions, filling.outcomes, _no_limit)
                return Ended()
            case RunSegmentCall():
                output, streams = self._author.run_segment(call.first, call.stop, call.payloads, many=call.many)
                return Ended(output=output, streams=streams)
            case PullItemsCall():
                items, has_ended = self._stream(call).pull(call.count)
                return Ended(items=items, has_ended=has_ended)
            case _:
                raise AssertionError(call)

    def _stream(self, call: PullItemsCall) -> Items:
        if call.asked is not None:
            self._streams[call.stream] = self._author.open_items(call.asked)
        stream = self._streams.get(call.stream)
        if stream is None:
            raise StepProcessEnded("the stream was lost with the process that read it")
        return stream


def _no_limit() -> None:
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
    collect_less()
    control.send(READY)
    Server(author).run(control)
    os._exit(0)  # a thread of the author's may never end


if __name__ == "__main__":
    main()
