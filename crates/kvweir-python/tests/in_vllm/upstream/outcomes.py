"""A pytest plugin for upstream's own tests: writes to the file of ``KVWEIR_UPSTREAM_OUT`` how each test ended."""

import json
import os

import pytest

_ended: dict[str, list[str]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes how a phase of a test ended; the worst counts."""
    known = _ended.get(report.nodeid)
    if known is None or report.outcome != "passed":
        text = "" if report.passed else str(report.longrepr)[-1500:]
        _ended[report.nodeid] = [report.outcome, text]


def pytest_sessionfinish() -> None:
    """Writes the outcomes where the runner wants them."""
    with open(os.environ["KVWEIR_UPSTREAM_OUT"], "w") as f:
        json.dump(_ended, f)
