"""Seeing how the engine is: the endpoints that show metrics, their history, `arborcast top` and `arborcast report`.

    endpoint, job_endpoint      pages that are made when somebody asks
    stack_monitor, process_accounts, own_process    the embedded engine looks at itself
    samples, history            the engine at one sample; many of them
    local, watching, exposition where an engine shows its metrics, and reading them
    top, top_frame, report, plots, figures, since   for people

Nothing here takes part in a delivery; everything here may fail without one being lost.
"""
