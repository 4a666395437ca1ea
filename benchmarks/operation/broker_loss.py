"""How long deliveries stall when one of three brokers is killed under load, and what is lost."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from tests.support.broker_cluster import running_brokers
from tests.support.dispatch_process import running_job
from tests.support.receiver import Receiver
from tests.support.steady_load import PATHS, counted, under_load


def main() -> None:
    """Kill each broker once, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--seconds", type=float, default=12.0, help="how long each broker stays away")
    options = parser.parse_args()
    stalls: list[float] = []
    with tempfile.TemporaryDirectory() as folder, running_brokers(Path(folder) / "kafka") as brokers:
        kafka = brokers.settings()
        with Receiver() as receiver, running_job(Path(folder) / "job", kafka), under_load(kafka, receiver) as load:
            receiver.wait_for(50)
            for number, broker in enumerate(brokers.brokers, start=1):
                brokers.wait_until_in_sync(kafka)
                killed = time.time()
                broker.kill()
                time.sleep(options.seconds)
                arrivals = [killed, *(each.at for each in receiver.requests if each.at > killed), time.time()]
                stalls.append(max(later - earlier for earlier, later in pairwise(arrivals)))
                print(f"broker {number} killed: deliveries stalled for {stalls[-1]:.1f} s", flush=True)
                broker.start(60)
            brokers.wait_until_in_sync(kafka)
            accepted = load.stop()
            deadline = time.monotonic() + 60
            while any(set(accepted) - set(counted(receiver, path)) for path in PATHS) and time.monotonic() < deadline:
                time.sleep(0.2)
            arrived = [counted(receiver, path) for path in PATHS]
    lost = sum(name not in each for each in arrived for name in accepted)
    twice = sum(each[name] - 1 for each in arrived for name in accepted if name in each)
    print(f"{len(accepted)} accepted for {len(PATHS)} subscribers: {lost} lost, {twice} arrived again")
    if options.json:
        figures = {"stalls_s": stalls, "accepted": len(accepted), "lost": lost, "repeated": twice}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
