"""Seeing how the engine is: the endpoints that show metrics, their history, `arborcast top` and `arborcast report`.

`endpoint` and `stack_monitor` answer those who ask, `samples` and `history` keep what was, `watching`, `top_frame`,
`report` and `figures` show it to people, in the words of `words`; `snapshot` tells it to scripts. Nothing here takes
part in a delivery; everything here may fail without one being lost.
"""

from __future__ import annotations
