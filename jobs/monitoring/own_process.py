"""The process itself, under the names that every Prometheus client uses."""

from __future__ import annotations

import psutil

from topic_model.metrics import Registry


def declare_process(metrics: Registry) -> None:
    """Memory, CPU, threads, descriptors of this process."""
    process = psutil.Process()
    started = process.create_time()
    metrics.gauge("process_resident_memory_bytes", "Resident memory.", lambda: process.memory_info().rss)
    metrics.counted("process_cpu_seconds_total", "CPU time used.", lambda: sum(process.cpu_times()[:2]))
    metrics.gauge("process_start_time_seconds", "When the process started, since the epoch.", lambda: started)
    metrics.gauge("process_threads", "Threads.", process.num_threads)
    metrics.gauge("process_open_fds", "Open file descriptors.", process.num_fds)
