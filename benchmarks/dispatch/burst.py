"""How fast a backlog leaves: notifications appended all at once, until the receiver has the last one.

    python -m benchmarks.dispatch.burst [--count 20000] [--subscribers 1] [--form raw|notify] [--rounds 3] [--json FILE]
                                     [SETTING=VALUE ...]

`raw` is one message per request; in the form `notify` waiting messages share requests.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from benchmarks.dispatching import dispatching, out_of_order, settings_arguments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--subscribers", type=int, default=1)
    parser.add_argument("--form", choices=("raw", "notify"), default="raw")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args()
    results = []
    with dispatching(settings_arguments(options.settings)) as bench:
        bench.subscribe([f"s{number}" for number in range(options.subscribers)], form=options.form)
        for round_number in range(options.rounds):
            bench.clear()
            ids = [f"b{round_number}-{number}" for number in range(options.count)]
            started = time.time()
            bench.append(ids)
            arrived = bench.arrivals(options.count * options.subscribers, timeout=20)
            elapsed = max(arrival.at for arrival in arrived) - started
            unique = {(arrival.path, arrival.notification) for arrival in arrived}
            result = {
                "deliveries": len(unique),
                "lost": options.count * options.subscribers - len(unique),
                "twice": len(arrived) - len(unique),
                "unordered": out_of_order(arrived, {}),
                "seconds": elapsed,
                "per_second": len(unique) / elapsed,
            }
            results.append(result)
            print(
                f"round {round_number}: {result['deliveries']} delivered in {elapsed:.2f} s = "
                f"{result['per_second']:.0f}/s, lost {result['lost']}, twice {result['twice']}, "
                f"unordered {result['unordered']}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
