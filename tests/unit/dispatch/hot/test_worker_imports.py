"""Imports of the functions and values that workers receive: there are as many workers as task slots."""

from __future__ import annotations

import subprocess
import sys

import pytest

from arborcast.dispatch.hot.sink import push_partition
from arborcast.dispatch.job.heartbeat import keep_worker_alive
from arborcast.dispatch.redelivery.partition_reports import Reports

pytestmark = pytest.mark.slow

# About 70 MiB; only the driver uses them.
OF_THE_DRIVER = ("deltalake", "numpy", "pandas", "pyarrow")


def test_workers_import_no_table_library() -> None:
    modules = ", ".join(each.__module__ for each in (keep_worker_alive, push_partition, Reports))
    code = f"import sys, dispatch.job.worker_daemon, {modules}; print({{*{OF_THE_DRIVER}}} & {{*sys.modules}})"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout

    assert loaded.strip() == "set()"
