"""Seeing how the engine is: the endpoints that show metrics, their history, `arborcast top` and `arborcast report`.

Nothing here takes part in a delivery; everything here may fail without one being lost.
"""
