"""What an installation needs, from the stored results: cores, memory, network, and what breaks first.

    python -m benchmarks.page.capacity [--subscriptions 1e8] [--rate 1e6] [--deliveries 1] [--bytes 800] [--batched]

Measures nothing; the constants are those of docs/benchmarks/results, so measure there first where it should be for your
machine: python -m benchmarks.page.page --only throughput gateway routing
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.page.capacity_model import ABOVE, BELOW, Load, checked, constants_from, most_per_second, needs
from benchmarks.page.results import ROOT, load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subscriptions", type=float, default=1e8)
    parser.add_argument("--rate", type=float, default=1e6, help="notifications a second")
    parser.add_argument("--deliveries", type=float, default=1.0, help="of each notification, on average")
    parser.add_argument("--bytes", type=float, default=800.0, help="of a payload")
    parser.add_argument("--batched", action="store_true", help="publishers send ten messages in each Notify")
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "benchmarks" / "results")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = load(options.results)
    known = constants_from(results)
    if known is None:
        sys.exit(
            f"{options.results} lacks results; run: python -m benchmarks.page.page --only throughput gateway routing"
        )
    asked = Load(
        options.subscriptions, options.rate, options.deliveries, payload=options.bytes, batched=options.batched
    )
    found = needs(asked, known)
    print("\nconstants (microseconds for a notification, for each delivery, for each byte beyond 800)")
    for name, value in asdict(known).items():
        shown = " + ".join(f"{each:,.3g}" for each in value.values()) if isinstance(value, dict) else f"{value:,.4g}"
        print(f"  {name:<20} {shown}")
    print("\nneeds")
    for name, value in asdict(found).items():
        print(f"  {name:<20} {value if isinstance(value, str) else format(value, ',.4g')}")
    print(f"\nat most on 8 cores: {most_per_second(8, asked, known):,.0f} notifications/s")
    points = checked(results, known)
    print(f"\nmeasured points, deliveries/s: the model may allow {ABOVE:g} times as much, and 1/{BELOW:g} at least")
    for point in points:
        held = f"not covered: {point.why}" if point.why else f"{point.times:.2f}x"
        print(f"  {point.what:<44} measured {point.measured:>10,.0f}   model {point.said:>10,.0f}   {held}")
    if not points:
        print("  none: only quick runs are stored")
    if options.json:
        options.json.write_text(
            json.dumps(
                {"constants": asdict(known), "needs": asdict(found), "points": [asdict(each) for each in points]}
            )
        )


if __name__ == "__main__":
    main()
