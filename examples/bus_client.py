"""Evaluate a model with nothing but NATS and msgpack: publish one message, read the events.

    python examples/bus_client.py nats://127.0.0.1:4222 digits-cnn digits

It uses nothing of the platform: what it says and hears is described in docs/protocol.md.
"""

import asyncio
import json
import sys
import time
import uuid
from typing import Any

import msgpack
import nats


async def evaluate(url: str, model: str, dataset: str, timeout_s: float = 300.0) -> dict[str, Any]:
    """Ask for an evaluation on every framework and return all that was told about it, by type of event."""
    connection = await nats.connect(url)
    try:
        # Time first, as in UUID version 7: lists of evaluations are sorted by id, newest first.
        evaluation_id = f"{time.time_ns() // 1_000_000:012x}{uuid.uuid4().hex[:20]}"
        # Subscribed before asking: a plain subscription hears only what comes after it.
        events = await connection.subscribe(f"mlms.v1.event.*.{evaluation_id}")
        await connection.jetstream().publish(
            "mlms.v1.evaluation.requested",
            msgpack.packb(
                {
                    "id": uuid.uuid4().hex,
                    "type": "evaluation_requested",
                    "version": 1,
                    "time": time.time_ns(),
                    "trace": None,
                    "data": {
                        "evaluation_id": evaluation_id,
                        "model": {"name": model, "version": "*"},
                        "dataset": {"name": dataset, "version": "*"},
                        "targets": "all",
                        "scenario": {"name": "single_stream", "min_duration_s": 0.2, "max_duration_s": 2.0},
                    },
                }
            ),
            headers={"Nats-Msg-Id": evaluation_id},
        )
        heard: dict[str, Any] = {"evaluation_id": evaluation_id}
        async with asyncio.timeout(timeout_s):
            while not {"evaluation_completed", "evaluation_rejected"} & heard.keys():
                message = msgpack.unpackb((await events.next_msg(timeout=timeout_s)).data, strict_map_key=False)
                heard.setdefault(message["type"], []).append(message["data"])
        return heard
    finally:
        await connection.close()


def main() -> None:
    """Evaluate what the command line names and print every task's figures."""
    if len(sys.argv) != 4:
        sys.exit(f"usage: {sys.argv[0]} NATS-URL MODEL DATASET")
    url, model, dataset = sys.argv[1:]
    heard = asyncio.run(evaluate(url, model, dataset))
    for event in heard.get("task_completed", []):
        record = event["record"]
        told = {
            "framework": record["environment"]["framework"],
            "version": record["environment"]["framework_version"],
            "top1": record["accuracy"]["top1"]["value"],
            "p90_ms": record["latency"].get("p90"),
            "predictions": sum(
                len(batch["input_id"])
                for batch in heard["predictions_recorded"]
                if batch["task_id"] == event["task_id"]
            ),
        }
        print(json.dumps(told))
    for event in heard.get("task_failed", []) + heard.get("evaluation_rejected", []):
        print(json.dumps(event["failure"]))
        sys.exit(1)


if __name__ == "__main__":
    main()
