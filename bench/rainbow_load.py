"""Load on Rainbow's port: so many clients, each with one call under way, for so long. Run as a program.

python -m bench.rainbow_load ADDRESS METHOD CLIENTS SECONDS < calls.json

Standard input: a list of requests as hex bytes; each client sends its own again and again. It prints how many calls
were answered and refused, the latencies at 50 and 99 %, and of SubmitJob the numbers that came back.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import grpc

from switchyard.features.rainbow.server.messages import GRAPH, SCHEDULER, SubmitJobResponse


async def main() -> None:
    address, name, clients, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    bodies = [bytes.fromhex(each) for each in json.load(sys.stdin)]
    service = GRAPH if name == "Satisfy" else SCHEDULER
    until = time.monotonic() + seconds
    waits: list[float] = []
    numbers: list[int] = []
    refused = 0

    async def client(place: int, channel: grpc.aio.Channel) -> None:
        nonlocal refused
        ask = channel.unary_unary(f"/{service.full_name}/{name}")
        while (began := time.monotonic()) < until:
            try:
                answer = await ask(bodies[place % len(bodies)], timeout=30)
            except grpc.RpcError:
                refused += 1
                continue
            waits.append(time.monotonic() - began)
            if name == "SubmitJob":
                numbers.append(SubmitJobResponse.FromString(answer).jobid)

    # A channel carries a hundred calls at once; clients of their own would have one each.
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options) for _ in range(max(1, min(clients, 16)))]
    began = time.monotonic()
    await asyncio.gather(*(client(place, channels[place % len(channels)]) for place in range(clients)))
    took = time.monotonic() - began
    for channel in channels:
        await channel.close()
    waits.sort()
    p50, p99 = (waits[int(len(waits) * part)] * 1000 if waits else 0.0 for part in (0.5, 0.99))
    found = {"done": len(waits), "refused": refused, "took_s": took, "p50_ms": p50, "p99_ms": p99, "numbers": numbers}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main())
