"""The driver of a Ray cluster, in a process of its own: it passes messages between the fleet and the cards, and nothing else.

Ray ends its driver when the head node is gone, so the fleet is another process. On stdin this one receives `{"card": 0, "message": {...}}`,
and `{"card": 0, "kill": true}`. On stdout it sends `{"cards": [{"name": ..., "device": ..., "of_node": [0, 2]}]}` first, or
`{"error": ...}`, and then `{"card": 0, "message": {...}}`. `of_node` is the place of the card on its node, and the number of cards there.
Each card is an actor with one GPU, which starts `softbench.run.fleet.card` on its node.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

END_SECONDS = 15.0
THREADS = "OMP_NUM_THREADS"
"""Ray sets it for its workers, mostly to 1. A card has as many threads as without Ray, unless the node's user set it."""
GPU, CPU = "GPU", "CPU"


class Pipe:
    """The process of a card on its node. Ray makes an actor of it."""

    def __init__(self) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the actor lives
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "softbench.run.fleet.card"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            start_new_session=True,
            env=environment_of_card(),
        )

    def send(self, line: str) -> None:
        """Pass a message to the card; a card that has ended gets none."""
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def lines(self) -> Iterator[str]:
        """The messages of the card; the last one is `ended`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:  # noqa: UP028 - Ray sends into the generator, and a file takes nothing
            yield line
        code = self.process.wait()
        self.log.seek(max(0, self.log.seek(0, os.SEEK_END) - 2000))
        last = self.log.read().decode(errors="replace").strip().rpartition("\n")[2]
        yield json.dumps({"op": "ended", "text": f"its process ended with code {code}{': ' + last if last else ''}"})

    def close(self) -> None:
        """End the card and its workers."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)


def environment_of_card() -> dict[str, str]:
    """The environment of this worker of Ray, without what Ray itself has set in THREADS."""
    theirs = None
    with suppress(OSError):  # the parent is the node's raylet, which has the environment of `ray start`
        variables = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
        theirs = next((value.decode() for name, _, value in (each.partition(b"=") for each in variables) if name == THREADS.encode()), None)
    return {name: value for name, value in os.environ.items() if name != THREADS or value == theirs}


def main(address: str, folder: str) -> None:
    """Serve the fleet. `address` is that of the cluster, or `auto`; every node gets the files in `folder`."""
    out, lock = os.fdopen(os.dup(1), "w", encoding="utf-8"), threading.Lock()
    os.dup2(2, 1)  # Ray prints

    def say(**message: object) -> None:
        with lock:
            out.write(json.dumps(message, separators=(",", ":")) + "\n")
            out.flush()

    try:
        import ray
    except ImportError:
        say(error="Ray is not installed: pip install 'softbench[ray]'")
        return
    try:
        environment = {"working_dir": folder} if any(Path(folder).iterdir()) else {}
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, runtime_env=environment)
        cards = _slots(ray.nodes())
    except Exception as error:  # Ray raises many kinds for a cluster that cannot be reached
        say(error=f"no Ray cluster at {address}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
        return
    if not cards:
        say(error=f"the Ray cluster at {address} has no node that is alive")
        return
    actors = [_actor(ray, card) for card in cards]
    say(
        cards=[{"name": card["name"], "device": "cuda" if card["resource"] == GPU else "cpu", "of_node": card["of_node"]} for card in cards]
    )
    for number, actor in enumerate(actors):
        threading.Thread(target=_pass_on, args=(ray, number, actor, say), daemon=True).start()
    for line in sys.stdin:
        message = json.loads(line)
        actor = actors[message["card"]]
        with suppress(Exception):  # the thread that reads from a lost actor tells the reason
            if message.get("kill"):
                ray.kill(actor)
            else:
                actor.send.remote(json.dumps(message["message"]))
    with suppress(Exception):
        ray.wait([actor.close.remote() for actor in actors], num_returns=len(actors), timeout=END_SECONDS)
    os._exit(0)  # the actors end with their driver; a node that hangs would hold up a shutdown


def _slots(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A card for each GPU of the nodes that are alive; without any GPU one for each node that has a processor for it."""
    alive = [node for node in nodes if node["Alive"]]
    resource = GPU if any(node["Resources"].get(GPU) for node in alive) else CPU
    found = [(node, int(node["Resources"].get(resource, 0))) for node in alive]
    counts = [(node, count if resource == GPU else min(count, 1)) for node, count in found]
    names = [node["NodeName"] for node in alive]

    def name(node: dict[str, Any]) -> str:
        return f"{node['NodeName']}" if names.count(node["NodeName"]) == 1 else f"{node['NodeName']}-{node['NodeID'][:4]}"

    return [
        {"name": f"{name(node)}:{i}", "node": node["NodeID"], "resource": resource, "of_node": [i, count]}
        for node, count in counts
        for i in range(count)
    ]


def _actor(ray: Any, card: dict[str, Any]) -> Any:
    """The actor of a card, on its node only: the fleet deals the cases of a lost card to others."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    share = {"num_gpus": 1, "num_cpus": 0} if card["resource"] == GPU else {"num_cpus": 1}
    place = NodeAffinitySchedulingStrategy(node_id=card["node"], soft=False)
    return ray.remote(**share, max_restarts=0, max_concurrency=3, scheduling_strategy=place)(Pipe).remote()


def _pass_on(ray: Any, number: int, actor: Any, say: Any) -> None:
    """Pass the messages of a card to the fleet; when its node is lost, the reason."""
    try:
        for line in actor.lines.options(num_returns="streaming").remote():
            say(card=number, message=json.loads(ray.get(line)))
    except Exception as error:
        reason = next((text for text in str(error).splitlines() if text.strip()), "")
        say(card=number, message={"op": "ended", "text": f"Ray lost it: {type(error).__name__}: {reason.strip()[:300]}"})
