"""Latency from the append to the log until the receiver has the push, at several rates.

    python -m benchmarks.dispatch.latency [--rates 5,50,500,1000] [--seconds 30] [--gears realtime,batch] [--json FILE]
        [SETTING=VALUE ...]

Both gears one after the other, in one run. Open loop with random arrivals; measured from the moment at which each
notification was meant to be appended, so a stall counts for all that it delayed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.dispatching import Dispatching, dispatching, out_of_order, percentile, settings_arguments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="5,50,500,1000", help="notifications per second, comma-separated")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--warm-up", type=float, default=10, help="seconds at 20/s before measuring")
    parser.add_argument("--gears", default="realtime,batch")
    parser.add_argument("--json", type=Path)
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args()
    rates = [float(text) for text in options.rates.split(",")]
    results: list[dict[str, float | str]] = []
    for gear in options.gears.split(","):
        with dispatching(settings_arguments([*options.settings, f"dispatch.gear={gear}"])) as bench:
            results += measured(bench, gear, rates, options.seconds, options.warm_up)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def measured(
    bench: Dispatching, gear: str, rates: list[float], seconds: float, warm_up: float
) -> Iterator[dict[str, float | str]]:
    """One line for each rate, printed as well."""
    bench.subscribe(["one"])
    first = bench.append_at(1, 3, "first")
    at = {arrival.notification: arrival.at for arrival in bench.arrivals(len(first))}
    print(f"{gear}: first notification after ready: {(at['first-0'] - first['first-0']) * 1000:.0f} ms")
    warm = bench.append_at(20, warm_up, "warm")
    bench.arrivals(len(first) + len(warm))
    print(
        f"{'gear':>8} {'rate/s':>7} {'sent':>6} {'lost':>5} {'twice':>5} {'disorder':>9} {'p50 ms':>7} {'p99 ms':>7} "
        f"{'max':>7}"
    )
    for rate in rates:
        bench.clear()
        sent = bench.append_at(rate, seconds, f"r{rate:g}")
        arrived = [a for a in bench.arrivals(len(sent), timeout=10) if a.notification in sent]
        delays = [(a.at - sent[a.notification]) * 1000 for a in arrived]
        unique = {a.notification for a in arrived}
        result: dict[str, float | str] = {
            "gear": gear,
            "rate": rate,
            "sent": len(sent),
            "lost": len(sent) - len(unique),
            "twice": len(arrived) - len(unique),
            "unordered": out_of_order(arrived, sent),
            "p50_ms": percentile(delays, 0.5),
            "p99_ms": percentile(delays, 0.99),
            "max_ms": max(delays),
        }
        print(
            f"{gear:>8} {rate:7g} {result['sent']:6} {result['lost']:5} {result['twice']:5} {result['unordered']:9} "
            f"{result['p50_ms']:7.1f} {result['p99_ms']:7.1f} {result['max_ms']:7.1f}"
        )
        yield result


if __name__ == "__main__":
    main()
