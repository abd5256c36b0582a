"""A TCP relay that delays, freezes and cuts: a slow or broken network between two processes of this machine.

What comes while it is frozen is neither delivered nor refused.
The kernels at both ends then still see a peer that lives, so keep-alive notices nothing.
"""

from __future__ import annotations

import math

import trio

_READ_BYTES = 1 << 16
_LOOPBACK = "127.0.0.1"


class Relay:
    """Relays connections to `port` for as long as `serve` runs."""

    def __init__(self, port: int, delay_seconds: float = 0.0) -> None:
        """`delay_seconds`: one way."""
        self._port = port
        self._delay_seconds = delay_seconds
        self._connections: list[trio.CancelScope] = []
        self._frozen: list[trio.CancelScope] = []
        self.pieces = 0
        """Number of pieces that were relayed."""

    async def serve(self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Relay connections until cancelled. Report the relay's own port to the nursery once it listens."""
        [listener] = await trio.open_tcp_listeners(0, host=_LOOPBACK)
        task_status.started(listener.socket.getsockname()[1])
        await trio.serve_listeners(self._relay, [listener])

    def cut(self) -> None:
        """Close the connections that there are, at both ends."""
        for scope in self._connections:
            scope.cancel()

    def freeze(self) -> None:
        """Deliver nothing more of the connections that there are; later ones are relayed."""
        for scope in self._frozen:
            scope.cancel()

    async def _relay(self, dialer: trio.SocketStream) -> None:
        try:
            answerer = await trio.open_tcp_stream(_LOOPBACK, self._port)
        except OSError:
            return  # This closes the dialer's end, as a refusal does, a moment later.
        async with answerer:
            with trio.CancelScope() as connection:
                self._connections.append(connection)
                with trio.CancelScope() as flow:
                    self._frozen.append(flow)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._pump, dialer, answerer, nursery.cancel_scope)
                        nursery.start_soon(self._pump, answerer, dialer, nursery.cancel_scope)
                if flow.cancelled_caught:
                    await trio.sleep_forever()

    async def _pump(self, source: trio.SocketStream, sink: trio.SocketStream, end: trio.CancelScope) -> None:
        """Relay one direction. When it ends, and all before its end is delivered, the connection ends."""
        send, receive = trio.open_memory_channel[tuple[float, bytes]](math.inf)

        async def deliver() -> None:
            async for due, data in receive:
                await trio.sleep_until(due)
                self.pieces += 1
                await sink.send_all(data)

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(deliver)
                async with send:
                    async for data in source:
                        await send.send((trio.current_time() + self._delay_seconds, bytes(data)))
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        end.cancel()
