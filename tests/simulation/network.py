"""A network in memory: machines by address, connections whose bytes keep their order, and what can be wrong with it.

Rule: what is cut off is not lost but late, as TCP sends it again; a connection is lost when an end says so, or when
what an end sends meets a machine that does not know it any more.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.loop import SimLoop
    from tests.simulation.world import Node, Process, World

WINDOW_BYTES = 256 << 10
READ_BYTES = 256 << 10
CONNECT_S = 127.0
# A cut connection tries again after so long at most once it is healed.
AGAIN_S = 0.4


class Network:
    """All links. Delays: `least_s` to `most_s` each way, more where a link was made slow."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random("network")
        self._draw = self.random.random
        self.least_s, self.most_s = 0.0001, 0.002
        self._listening: dict[tuple[str, int], Listening] = {}
        # By link: which cut it was.
        self._cut: dict[tuple[str, str], int] = {}
        self._cuts = 0
        self._slow: dict[tuple[str, str], float] = {}
        self._refusing: set[str] = set()
        self._stalled: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self.ends: list[End] = []

    # -- faults --------------------------------------------------------------------------------------------------

    def cut(self, source: Node, target: Node) -> None:
        """Let nothing through from one to the other; the way back stays open."""
        self._cuts += 1
        self._cut[source.ip, target.ip] = self._cuts

    def partition(self, *sides: Iterable[Node]) -> None:
        """Cut every node of a side from those of the other sides, both ways."""
        groups = [list(side) for side in sides]
        for one in groups:
            for other in groups:
                if one is not other:
                    for a in one:
                        for b in other:
                            self.cut(a, b)

    def heal(self) -> None:
        """Let everything through again, as fast as ever."""
        self._slow.clear()
        self._refusing.clear()
        for link, number in list(self._cut.items()):
            if link in self._stalled:
                self.world.scheduler.after(self.random.uniform(0.001, AGAIN_S), partial(self._open, link, number))
            else:
                del self._cut[link]

    def open(self, source: Node, target: Node) -> None:
        """Let everything through again from one to the other."""
        link = source.ip, target.ip
        if (number := self._cut.get(link)) is not None:
            self.world.scheduler.after(self.random.uniform(0.001, AGAIN_S), partial(self._open, link, number))

    def rejoin(self, node: Node, others: Iterable[Node]) -> None:
        """Let everything through again between a machine and others, both ways."""
        for other in others:
            self.open(node, other)
            self.open(other, node)

    def _open(self, link: tuple[str, str], number: int) -> None:
        if self._cut.get(link) == number:
            del self._cut[link]
            for arrive in self._stalled.pop(link, []):
                arrive()

    def slow(self, source: Node, target: Node, delay_s: float) -> None:
        self._slow[source.ip, target.ip] = delay_s

    def refuse(self, node: Node, wanted: bool = True) -> None:
        """Have a machine refuse every new connection."""
        (self._refusing.add if wanted else self._refusing.discard)(node.ip)

    def break_connections(self, a: Node, b: Node) -> None:
        """End every connection of two machines, as a router that lost its table."""
        for end in list(self.ends):
            if end.remote[0] == b.ip and end.local[0] == a.ip:
                end.reset()
                end.other.reset()

    # -- ways ----------------------------------------------------------------------------------------------------

    def carry(self, source_ip: str, target_ip: str, arrive: Callable[[], None], least_at_s: float = 0.0) -> float:
        """Have something arrive later, or once the way is open; returns when."""
        now_s = self.world.scheduler.now_s
        delay_s = 0.00002 if source_ip == target_ip else self.least_s + (self.most_s - self.least_s) * self._draw()
        link = source_ip, target_ip
        when_s = now_s + delay_s + self._slow.get(link, 0.0)
        if when_s < least_at_s:
            when_s = least_at_s

        def due() -> None:
            if link in self._cut:
                self._stalled.setdefault(link, []).append(arrive)
            else:
                arrive()

        self.world.scheduler.at(when_s, due)
        return when_s

    def look_up(self, node: Node, host: Any, port: Any) -> Any:
        ip = self._ip(node, host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, int(port or 0)))]

    def _ip(self, node: Node, host: Any) -> str:
        if host in (None, "", "0.0.0.0", "127.0.0.1", "localhost"):
            return node.ip
        if host in self.world.nodes:
            return self.world.nodes[host].ip
        return str(host)

    def datagrams(self, loop: SimLoop, factory: Callable[[], Any]) -> Any:
        # It is asked for its address alone.
        end = End(self, loop, (loop.process.node.ip, 0), ("", 0))
        end.forget()
        return end, factory()

    # -- connections ---------------------------------------------------------------------------------------------

    def listen(self, loop: SimLoop, factory: Callable[[], Any], host: Any, port: Any) -> Listening:
        node = loop.process.node
        ip = self._ip(node, host)
        port = int(port) or node.next_port()
        if (ip, port) in self._listening:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listening = Listening(self, loop, factory, (ip, port))
        self._listening[ip, port] = listening
        loop.process.listening.append(listening)
        return listening

    async def connect(self, loop: SimLoop, factory: Callable[[], Any], host: Any, port: Any) -> Any:
        node = loop.process.node
        node.count_call()
        target = (self._ip(node, host), int(port))
        done: asyncio.Future[End | int] = loop.create_future()

        def told(result: End | int) -> None:
            if not done.done():
                done.set_result(result)
            elif isinstance(result, End):
                result.reset()
                result.other.reset()

        def back(result: End | int) -> None:
            self.carry(target[0], node.ip, lambda: loop.call_outside(told, result))

        def knock() -> None:
            listening = self._listening.get(target)
            remote = self.world.by_ip.get(target[0])
            if remote is None or not remote.is_up:
                return  # Nobody says no.
            if listening is None or target[0] in self._refusing:
                back(errno.ECONNREFUSED)
                return
            ours = End(self, loop, (node.ip, node.next_port()), target)
            theirs = End(self, listening.loop, target, ours.local)
            ours.other, theirs.other = theirs, ours
            theirs.open(listening.factory)
            back(ours)

        self.carry(node.ip, target[0], knock)
        timer = loop.call_later(CONNECT_S, told, errno.ETIMEDOUT)
        try:
            result = await done
        except BaseException:
            if done.done() and not done.cancelled() and isinstance(found := done.result(), End):
                found.reset()
                found.other.reset()
            raise
        finally:
            timer.cancel()
        if isinstance(result, int):
            raise OSError(result, f"Connect call failed {target}: {os.strerror(result)}")
        protocol = factory()
        result.protocol = protocol
        result.is_made = True
        protocol.connection_made(result)
        result.readable()
        return result, protocol

    def end_process(self, process: Process, *, silent: bool) -> None:
        """Close what a process had open, as its kernel does; `silent`: the machine is gone and tells nobody."""
        for listening in process.listening:
            self._listening.pop(listening.name, None)
        for end in [end for end in self.ends if end.loop.process is process]:
            end.forget()
            if not silent:
                self.carry(end.local[0], end.remote[0], end.other.reset, end.sent_at_s)

    def gone(self, listening: Listening) -> None:
        if self._listening.get(listening.name) is listening:
            del self._listening[listening.name]


class _Socket:
    def __init__(self, name: tuple[str, int]) -> None:
        self._name = name
        self.family = socket.AF_INET

    def getsockname(self) -> tuple[str, int]:
        return self._name


class Listening(asyncio.AbstractServer):
    """What create_server gives."""

    def __init__(self, network: Network, loop: SimLoop, factory: Callable[[], Any], name: tuple[str, int]) -> None:
        self._network, self.loop, self.factory, self.name = network, loop, factory, name
        self.sockets = (_Socket(name),)

    def close(self) -> None:
        self._network.gone(self)

    async def wait_closed(self) -> None:
        return

    def is_serving(self) -> bool:
        return self._network._listening.get(self.name) is self

    def get_loop(self) -> Any:
        return self.loop


class End(asyncio.Transport):
    """One end of a connection."""

    other: End

    def __init__(self, network: Network, loop: SimLoop, local: tuple[str, int], remote: tuple[str, int]) -> None:
        super().__init__()
        self.network, self.loop, self.local, self.remote = network, loop, local, remote
        self.protocol: Any = None
        self.is_made = False
        self.is_known = True  # By the kernel of its machine.
        self._unsent = bytearray()
        self._in_flight = 0
        self.sent_at_s = 0.0
        self._arrived: list[bytes] = []
        self._eof_arrived = self._eof_told = False
        self._lost: Exception | bool | None = False
        self._closing = self._eof_wanted = self._eof_sent = False
        self._reading_paused = self._writing_paused = False
        self._high, self._low = 64 << 10, 16 << 10
        self._read_scheduled = False
        network.ends.append(self)

    def open(self, factory: Callable[[], Any]) -> None:
        """Begin the accepting side, in its own loop."""

        def accept() -> None:
            if self._lost is not False and self._lost is not None:
                return
            self.protocol = factory()
            self.is_made = True
            self.protocol.connection_made(self)
            self.readable()

        self.loop.call_outside(accept)

    # -- what the network does -----------------------------------------------------------------------------------

    def _arrive(self, data: bytes) -> None:
        if not self.is_known:
            # A machine that runs, and does not know the connection, says so.
            node = self.network.world.by_ip.get(self.local[0])
            if node is not None and node.is_up:
                self.network.carry(self.local[0], self.remote[0], self.other.reset)
            return
        self._arrived.append(data)
        self.readable()

    def _arrive_eof(self) -> None:
        if self.is_known:
            self._eof_arrived = True
            self.readable()

    def reset(self) -> None:
        """Hear that the connection is no more."""
        if self.is_known:
            self.forget()
            self._lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def forget(self) -> None:
        self.is_known = False
        if self in self.network.ends:
            self.network.ends.remove(self)

    def _lose(self, error: Exception | None) -> None:
        if self._lost is not False:
            return
        self._lost = error
        self._closing = True
        self._unsent.clear()

        def tell() -> None:
            if self.is_made:
                self.protocol.connection_lost(error)

        self.loop.call_outside(tell)

    def readable(self) -> None:
        if not self._read_scheduled and (self._arrived or self._eof_arrived) and not self._reading_paused:
            self._read_scheduled = True
            self.loop.call_outside(self._read)

    def _read(self) -> None:
        self._read_scheduled = False
        if self._reading_paused or not self.is_made or self._closing:
            return
        if self._arrived:
            data = self._arrived[0] if len(self._arrived) == 1 else b"".join(self._arrived)
            self._arrived.clear()
            draw = self.network.random
            cut = len(data)
            if cut > READ_BYTES:
                cut = READ_BYTES
            elif cut > 1 and draw.random() < 0.05:
                cut = draw.randrange(1, cut)
            if cut < len(data):
                self._arrived.append(data[cut:])
                data = data[:cut]
            self.network.carry(self.local[0], self.remote[0], lambda: self.other._taken(len(data)))
            self.protocol.data_received(data)
            self.readable()
        elif self._eof_arrived and not self._eof_told:
            self._eof_told = True
            if not self.protocol.eof_received():
                self.close()

    def _taken(self, count: int) -> None:
        self._in_flight -= count
        self._send()

    def _send(self) -> None:
        if not self.is_known:
            return
        room = WINDOW_BYTES - self._in_flight
        if self._unsent and room > 0:
            data = bytes(self._unsent[:room])
            del self._unsent[:room]
            self._in_flight += len(data)
            other = self.other
            self.network.world.trace(self.local, self.remote, data)
            self.sent_at_s = self.network.carry(
                self.local[0], self.remote[0], lambda: other._arrive(data), self.sent_at_s
            )
        if not self._unsent and (self._closing or self._eof_wanted) and not self._eof_sent:
            self._eof_sent = True
            self.sent_at_s = self.network.carry(self.local[0], self.remote[0], self.other._arrive_eof, self.sent_at_s)
        if not self._unsent and self._closing and self._lost is False:
            self._lose(None)
            self.forget()
        if self._writing_paused and len(self._unsent) <= self._low:
            self._writing_paused = False
            self.loop.call_outside(self._resume)

    def _resume(self) -> None:
        if self.is_made and self._lost is False:
            self.protocol.resume_writing()

    # -- what asyncio's transports do ----------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self.remote, "sockname": self.local}.get(name, default)

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        self.loop.process.node.count_call()
        self._unsent += data
        self._send()
        if len(self._unsent) > self._high and not self._writing_paused:
            self._writing_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._closing:
            self._eof_wanted = True
            self._send()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if self.remote[0]:
                self._send()

    def abort(self) -> None:
        if self._lost is False:
            if self.is_known:
                self.forget()
                self.network.carry(self.local[0], self.remote[0], self.other.reset, self.sent_at_s)
            self._lose(None)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = (64 << 10) if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self.readable()

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol
