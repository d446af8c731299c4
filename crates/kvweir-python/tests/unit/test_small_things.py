"""Sizes, logs, the package itself."""

import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
from blocks import Memory, open_tier

import kvweir
from kvweir import parse_size, take_logs


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("1073741824", 1 << 30), ("500GiB", 500 << 30), ("1TiB", 1 << 40), ("2 MiB", 2 << 20), ("1GB", 10**9)],
)
def test_sizes_read_as_people_write_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1.2.3GiB", "12 parsecs", "1e400", "99999999999999999999", "\0"])
def test_what_is_no_size_is_refused_and_quoted(text):
    with pytest.raises(ValueError):
        parse_size(text)


def test_an_unbounded_tier_warns_once_in_the_logs(tmp_path):
    take_logs()
    tier = open_tier(Memory(), tmp_path, max_bytes=None)
    tier.shutdown()
    warnings = [text for level, text in take_logs() if level == 30]
    assert sum("bound" in text for text in warnings) == 1, warnings
    assert take_logs() == []


def test_importing_the_package_loads_no_other():
    code = "import sys, kvweir; print(*sorted(m.partition('.')[0] for m in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "torch", "vllm"} & set(loaded)


def test_the_package_is_typed_and_complete():
    package = Path(kvweir.__file__).parent
    assert (package / "py.typed").is_file()
    assert (package / "_kvweir.pyi").is_file()
    assert sorted(kvweir.__all__) == kvweir.__all__
    assert version("kvweir") == kvweir.__version__


def test_the_entry_point_of_vllms_plugins_is_declared():
    (plugin,) = [e for e in entry_points(group="vllm.general_plugins") if e.name == "kvweir"]
    assert plugin.load().__name__ == "register"


def test_the_plugin_does_nothing_without_vllm():
    code = "import sys; sys.modules['vllm'] = None; from kvweir.plugin import register; register()"
    subprocess.run([sys.executable, "-c", code], check=True)
