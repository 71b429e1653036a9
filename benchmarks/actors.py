"""What the actor runtime costs, compared with the primitives of trio and asyncio in the same minute.

    python benchmarks/actors.py [--json] [--rounds 5] [--backend trio|asyncio|uvloop] [--quick]

Every number is a median over rounds in which all contestants take turns, in CPU time of the process, so that a busy
machine affects all of them alike. Only the ratios are promised; absolute numbers are this machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import tracemalloc
from collections import deque
from collections.abc import Awaitable, Callable
from time import process_time_ns
from typing import Any

import anyio
import msgspec
import trio
from anyio.lowlevel import checkpoint

from repertory.actors import ActorRef, ActorSystem, Request, handler, open_system
from repertory.actors.scheduler import current_scheduler

BURST = 100


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Sent by ``tell``."""

    n: int = 1


class Count(Request[int], frozen=True, gc=False):
    """Sent by ``ask``, and answered by a plain ``def``."""

    n: int = 1


class CountSlowly(Request[int], frozen=True, gc=False):
    """Sent by ``ask``, and answered by an ``async def``, so always with a task switch."""

    n: int = 1


class Counter:
    """The actor under test."""

    def __init__(self) -> None:
        self.total = 0

    @handler
    def tick(self, message: Tick) -> None:
        """Count a told message."""
        self.total += message.n

    @handler
    def count(self, message: Count) -> int:
        """Count an asked message."""
        self.total += message.n
        return self.total

    @handler
    async def count_slowly(self, message: CountSlowly) -> int:
        """Count an asked message, asynchronously."""
        self.total += message.n
        return self.total


class HandMade:
    """The least that a hand-made actor does for a message: find the handler, count, survive its errors."""

    def __init__(self) -> None:
        self.total = 0
        self.crashes = 0
        self.table = {Tick: self.tick}

    def tick(self, message: Tick) -> int:
        """Count."""
        self.total += message.n
        return self.total

    def handle(self, message: Tick) -> int | None:
        """Handle one message."""
        try:
            return self.table[type(message)](message)
        except ValueError:
            self.crashes += 1
            return None


class Spot:
    """A place to sleep, a queue, and a slot."""

    __slots__ = ("idle", "parked", "queue", "value")

    def __init__(self) -> None:
        self.parked: Any = None
        self.queue: deque[Any] = deque()
        self.idle = False
        self.value = 0


Contestant = Callable[[int], Awaitable[None]]


class Arena:
    """The contestants on one backend. Each does its work ``n`` times."""

    def __init__(self, system: ActorSystem, tasks: Any, backend: str) -> None:
        self.system = system
        self.tasks = tasks
        self.backend = backend
        self.ref: ActorRef[Tick | Count | CountSlowly] = system.spawn(Counter, capacity=100_000)

    async def settle(self) -> None:
        """Wait until all told messages are handled."""
        await self.ref.ask(CountSlowly())

    async def tell(self, n: int) -> None:
        """Bursts of a hundred messages, with a checkpoint between."""
        for _ in range(n // BURST):
            for _ in range(BURST):
                self.ref.tell(Tick())
            await checkpoint()
        await self.settle()

    async def tell_50_to_1(self, n: int) -> None:
        """Fifty tasks, ten messages a turn."""

        async def producer() -> None:
            for _ in range(n // 500):
                for _ in range(10):
                    self.ref.tell(Tick())
                await checkpoint()

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(producer)
        await self.settle()

    async def ask_inline(self, n: int) -> None:
        """Asks of an idle actor with a plain handler."""
        for _ in range(n):
            await self.ref.ask(Count())

    async def ask_switch(self, n: int) -> None:
        """Asks through the mailbox."""
        for _ in range(n):
            await self.ref.ask(CountSlowly())

    async def ask_deadline(self, n: int) -> None:
        """The same with a deadline in the timing wheel."""
        for _ in range(n):
            await self.ref.ask(CountSlowly(), reply_timeout=30)

    async def ask_fail_after(self, n: int) -> None:
        """The same with a cancel scope each."""
        for _ in range(n):
            with anyio.fail_after(30):
                await self.ref.ask(CountSlowly())

    async def ask_concurrent(self, n: int) -> None:
        """A hundred askers at once."""

        async def asker() -> None:
            for _ in range(n // 100):
                await self.ref.ask(CountSlowly(), reply_timeout=30)

        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(asker)

    async def spawn_stop(self, n: int) -> None:
        """Start ``n`` actors with supervision, then stop them all."""
        refs = [self.system.spawn(Counter) for _ in range(n)]
        await checkpoint()
        for ref in refs:
            ref.stop()
        for ref in refs:
            await ref.wait_stopped()

    async def spawn_lazy(self, n: int) -> None:
        """Make ``n`` actors that get no messages."""
        for ref in [self.system.spawn(Counter, lazy=True) for _ in range(n)]:
            ref.kill()

    async def stream_spawn_stop(self, n: int) -> None:
        """The same with a task and an anyio stream each, and nothing else."""

        async def actor(receive: Any) -> None:
            async for _ in receive:
                pass

        streams = []
        async with anyio.create_task_group() as tasks:
            for _ in range(n):
                send, receive = anyio.create_memory_object_stream[Any](100)
                streams.append((send, receive))
                tasks.start_soon(actor, receive)
            await checkpoint()
            for send, _ in streams:
                send.close()
        for _, receive in streams:
            receive.close()

    async def stream_ask_concurrent(self, n: int) -> None:
        """A hundred askers of a channel actor; each ask brings a channel of its own for the answer."""
        send, receive = anyio.create_memory_object_stream[Any](1000)
        handle = HandMade().handle

        async def actor() -> None:
            async for message, reply in receive:
                await reply.send(handle(message))

        async def asker() -> None:
            for _ in range(n // 100):
                reply, answer = anyio.create_memory_object_stream[int](1)
                with reply, answer:
                    await send.send((Tick(), reply))
                    await answer.receive()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(actor)
            async with anyio.create_task_group() as askers:
                for _ in range(100):
                    askers.start_soon(asker)
            send.close()
        receive.close()

    async def channel_send(self, n: int) -> None:
        """trio's memory channel, awaiting each send."""
        send, receive = trio.open_memory_channel[Tick](100)
        handle = HandMade().handle

        async def consumer() -> None:
            async for message in receive:
                handle(message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer)
            for _ in range(n):
                await send.send(Tick())
            await send.aclose()

    async def channel_send_nowait(self, n: int) -> None:
        """trio's memory channel, in bursts of a hundred."""
        send, receive = trio.open_memory_channel[Tick](100_000)
        handle = HandMade().handle

        async def consumer() -> None:
            async for message in receive:
                handle(message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer)
            for _ in range(n // BURST):
                for _ in range(BURST):
                    send.send_nowait(Tick())
                await trio.lowlevel.checkpoint()
            await send.aclose()

    async def queue_actor(self, n: int) -> None:
        """An asyncio.Queue of messages and futures, and a task, in bursts of a hundred."""
        queue: asyncio.Queue[tuple[Tick, Any] | None] = asyncio.Queue()
        handle = HandMade().handle

        async def consumer() -> None:
            while (envelope := await queue.get()) is not None:
                message, future = envelope
                answer = handle(message)
                if future is not None:
                    future.set_result(answer)

        task = asyncio.create_task(consumer())
        for _ in range(n // BURST):
            for _ in range(BURST):
                queue.put_nowait((Tick(), None))
            await asyncio.sleep(0)
        queue.put_nowait(None)
        await task

    async def queue_50_to_1(self, n: int) -> None:
        """The same with fifty producers, ten messages a turn."""
        queue: asyncio.Queue[tuple[Tick, Any] | None] = asyncio.Queue()
        handle = HandMade().handle

        async def consumer() -> None:
            while (envelope := await queue.get()) is not None:
                message, future = envelope
                answer = handle(message)
                if future is not None:
                    future.set_result(answer)

        async def producer() -> None:
            for _ in range(n // 500):
                for _ in range(10):
                    queue.put_nowait((Tick(), None))
                await asyncio.sleep(0)

        task = asyncio.create_task(consumer())
        async with asyncio.TaskGroup() as tasks:
            for _ in range(50):
                tasks.create_task(producer())
        queue.put_nowait(None)
        await task

    async def naked_ping_pong(self, n: int) -> None:
        """A hand-made mailbox without any feature: deque, idle flag, native wake, and a slot for the answer."""
        backend = current_scheduler()
        box = Spot()

        async def server() -> None:
            total = 0
            while True:
                if not box.queue:
                    box.idle = True
                    await backend.park(box)
                    continue
                message, slot = box.queue.popleft()
                total += message.n
                slot.value = total
                backend.unpark(slot)
                if total == n:
                    return

        async with backend.open_nursery() as nursery:
            nursery.start_soon(server)
            for _ in range(n):
                slot = Spot()
                box.queue.append((Tick(), slot))
                if box.idle:
                    box.idle = False
                    backend.unpark(box)
                await backend.park(slot)

    def contestants(self) -> dict[str, tuple[Contestant, int]]:
        """All contestants on this backend, and how often each does its work."""
        every: dict[str, tuple[Contestant, int]] = {
            "tell": (self.tell, 100_000),
            "tell, 50 to 1": (self.tell_50_to_1, 50_000),
            "ask, inline": (self.ask_inline, 50_000),
            "ask, task switch": (self.ask_switch, 5_000),
            "ask, with deadline": (self.ask_deadline, 5_000),
            "ask, in fail_after": (self.ask_fail_after, 5_000),
            "ask, 100 at once": (self.ask_concurrent, 10_000),
            "naked ping-pong": (self.naked_ping_pong, 5_000),
            "anyio stream actor, 100 asking": (self.stream_ask_concurrent, 5_000),
            "spawn and stop": (self.spawn_stop, 2_000),
            "spawn lazily": (self.spawn_lazy, 2_000),
            "anyio stream actor, spawn and stop": (self.stream_spawn_stop, 2_000),
        }
        if self.backend == "trio":
            every["trio channel, send"] = (self.channel_send, 20_000)
            every["trio channel, send_nowait"] = (self.channel_send_nowait, 50_000)
        else:
            every["asyncio.Queue actor"] = (self.queue_actor, 50_000)
            every["asyncio.Queue actor, 50 to 1"] = (self.queue_50_to_1, 50_000)
        return every


# ratio: (dividend, divisor, target, whether a higher ratio is better)
RATIOS: dict[str, tuple[str, str, float, bool]] = {
    "tell / trio channel send": ("trio channel, send", "tell", 15, True),
    "tell / trio send_nowait": ("trio channel, send_nowait", "tell", 8, True),
    "tell / asyncio.Queue actor": ("asyncio.Queue actor", "tell", 1.6, True),
    "tell 50 to 1 / asyncio.Queue actor": ("asyncio.Queue actor, 50 to 1", "tell, 50 to 1", 1.0, True),
    "inline ask / task switch": ("ask, task switch", "ask, inline", 10, True),
    "ask with deadline / naked ping-pong": ("ask, with deadline", "naked ping-pong", 1.3, False),
    "ask with deadline / in fail_after": ("ask, with deadline", "ask, in fail_after", 0.5, False),
    "100 asking / anyio stream actor": ("anyio stream actor, 100 asking", "ask, 100 at once", 4, True),
    "spawn and stop / anyio stream actor": ("spawn and stop", "anyio stream actor, spawn and stop", 0.8, False),
}


async def measure(backend: str, rounds: int, scale: float) -> dict[str, float]:
    """Nanoseconds of CPU per operation, by contestant."""
    times: dict[str, list[float]] = {}
    async with open_system() as system, anyio.create_task_group() as tasks:
        arena = Arena(system, tasks, backend)
        await arena.settle()
        for round_number in range(rounds + 1):
            for name, (contestant, count) in arena.contestants().items():
                n = max(1_000, int(count * scale))
                gc.collect()
                began = process_time_ns()
                await contestant(n)
                if round_number:  # the first round warms up
                    times.setdefault(name, []).append((process_time_ns() - began) / n)
    return {name: statistics.median(values) for name, values in times.items()}


async def measure_memory() -> dict[str, float]:
    """Bytes per idle actor."""
    found: dict[str, float] = {}
    count = 2_000
    for name, lazy in (("idle actor", False), ("lazy actor", True)):
        async with open_system() as system:
            tracemalloc.start()
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            refs = [system.spawn(Counter, lazy=lazy) for _ in range(count)]
            for _ in range(5):
                await checkpoint()
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            found[name] = (after - before) / count
            for ref in refs:
                ref.kill()
            await system.wait_stopped()
    return found


def run_on(backend: str, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Run on trio, asyncio or uvloop."""
    if backend == "uvloop":
        return anyio.run(function, *args, backend="asyncio", backend_options={"use_uvloop": True})
    return anyio.run(function, *args, backend=backend)


def report(backend: str, times: dict[str, float], memory: dict[str, float]) -> None:
    """Print one backend's tables."""
    print(f"\n{backend}")
    for name, value in times.items():
        print(f"  {name:<40} {value / 1000:>9.2f} µs")
    for name, value in memory.items():
        print(f"  {name:<40} {value / 1024:>9.2f} KiB")
    for name, ratio, target, better in ratios(times):
        met = "" if better else "   (missed)"
        print(f"  {name:<40} {ratio:>9.2f} ×   target {target}{met}")


def ratios(times: dict[str, float]) -> list[tuple[str, float, str, bool]]:
    """Name, ratio, target, and whether the target is met."""
    found = []
    for name, (dividend, divisor, target, higher) in RATIOS.items():
        if dividend in times and divisor in times:
            ratio = times[dividend] / times[divisor]
            found.append((name, ratio, f"{'≥' if higher else '≤'} {target}", (ratio >= target) == higher))
    return found


def main() -> None:
    """Parse the command line, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument("--rounds", type=int, default=5, help="rounds after one to warm up (default 5)")
    parser.add_argument("--backend", action="append", choices=["trio", "asyncio", "uvloop"], help="default: all")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: to see that it runs")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for backend in options.backend or ["trio", "asyncio", "uvloop"]:
        times = run_on(backend, measure, backend, options.rounds, 0.1 if options.quick else 1.0)
        memory = run_on(backend, measure_memory)
        found = {name: {"ratio": ratio, "target": target, "met": met} for name, ratio, target, met in ratios(times)}
        results[backend] = {"ns": times, "bytes": memory, "ratios": found}
        if not options.json:
            report(backend, times, memory)
    if options.json:
        json.dump({"python": sys.version.split()[0], "results": results}, sys.stdout, indent=2)
        print()


if __name__ == "__main__":
    main()
