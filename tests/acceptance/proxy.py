"""A TCP proxy between workers and a broker that can lose the replies of commits.

Kafka's frames are a 4-byte length and a body; a request's body starts with api key, api version and correlation id, a response's with the
correlation id. A broker must advertise the proxy's port on a listener of its own, else clients go past it after their first metadata
answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from typing import Literal

END_TXN = 26
"""Api key of EndTxn: commit or abort of a transaction."""

Loss = Literal["none", "cut", "hold"]
"""What becomes of a commit's reply: it passes; the connection breaks instead of it; it never comes and the connection stays."""


def listener_properties(proxy_port: int, own_port: int) -> dict[str, str]:
    """Server properties of a broker with a second listener on `own_port` that advertises the proxy's port."""
    client, controller = "CLIENT://127.0.0.1:{client_port}", "CONTROLLER://127.0.0.1:{controller_port}"
    return {
        "listeners": f"{client},PROXIED://127.0.0.1:{own_port},{controller}",
        "advertised.listeners": f"{client},PROXIED://127.0.0.1:{proxy_port}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Proxy:
    """Passes connections on from `port` to `target_port`, in a thread of its own."""

    def __init__(self, port: int, target_port: int) -> None:
        self.port = port
        self.loss: Loss = "none"
        self.every = 1
        """One of so many commits is lost."""
        self.commits = 0
        self.lost = 0
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="proxy")
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the proxy did not start")

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self.port}"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self._ready.set()

    async def _end(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.close()
            return
        commits: set[int] = set()
        pumps = [
            asyncio.create_task(self._requests(reader, to_writer, commits)),
            asyncio.create_task(self._responses(to_reader, writer, commits)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (writer, to_writer):
                with contextlib.suppress(OSError):
                    end.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, commits: set[int]) -> None:
        while True:
            frame = await _frame(reader)
            api, _, correlation = struct.unpack_from(">hhi", frame, 4)
            if api == END_TXN:
                self.commits += 1
                if self.loss != "none" and self.commits % self.every == 0:
                    commits.add(correlation)
            writer.write(frame)
            await writer.drain()

    async def _responses(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, commits: set[int]) -> None:
        while True:
            frame = await _frame(reader)
            (correlation,) = struct.unpack_from(">i", frame, 4)
            if correlation in commits:
                commits.discard(correlation)
                self.lost += 1
                if self.loss == "cut":
                    return
                continue
            writer.write(frame)
            await writer.drain()

    def close(self) -> None:
        """End every connection and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    (length,) = struct.unpack(">i", head)
    return head + await reader.readexactly(length)
