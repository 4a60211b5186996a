"""leaders.py: answers GET /progress for the leaders of any number of jobs, each time some steps further, as a worker does.
Prints its port."""
import asyncio
import json
import time

BEGAN = time.monotonic()


async def answer(reader, writer):
    try:
        while await reader.readuntil(b"\r\n\r\n"):
            step = int(100 * (time.monotonic() - BEGAN))
            body = json.dumps({"step": step, "totalSteps": 10**9, "epoch": step / 1000, "loss": 1 / (1 + step),
                               "accuracy": 0.5, "examplesPerSecond": 12800, "rankStepSeconds": [0.01]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
