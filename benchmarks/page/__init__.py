"""The page docs/benchmarks.md, from running its parts to drawing its pictures.

page            the program
parts           what belongs on it, and the command for each
results         what came out, as it is kept in docs/benchmarks/results
targets, asked  what was asked of each figure; looking figures up
render          page.md, filled with results
charts, pictures        what is drawn; SVG
capacity, capacity_model    what an installation of any size needs, computed from the results
"""

from __future__ import annotations
