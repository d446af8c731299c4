"""A tier's stanza: what it may hold, and what the user reads who errs. Needs no vLLM."""

import importlib.util
import sys
from pathlib import Path

import pytest

import kvweir
from kvweir import InvalidError


@pytest.fixture(scope="module")
def read():
    """``FsSettings.read``, loaded beside ``kvweir.vllm``, which would import vLLM."""
    path = Path(kvweir.__file__).parent / "vllm" / "settings.py"
    spec = importlib.util.spec_from_file_location("_kvweir_settings", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return lambda **stanza: module.FsSettings.read({"root_dir": "/kv", **stanza})


def test_the_settings_of_stock_fs_are_taken(read):
    s = read(n_read_threads=4, n_write_threads=2, enable_kv_events=True, locality="REMOTE")
    assert (s.root_dir, s.n_read_threads, s.n_write_threads) == ("/kv", 4, 2)
    assert (s.enable_kv_events, s.locality) == (True, "REMOTE")
    assert s.max_bytes is None


def test_layout_and_engine_are_words_with_sane_defaults(read):
    assert (read().layout, read().engine) == ("auto", "threads")
    assert (read(layout="pack").layout, read(engine="io_uring").engine) == ("pack", "io_uring")
    with pytest.raises(InvalidError, match="layout = 'packed': auto, fs or pack"):
        read(layout="packed")
    with pytest.raises(InvalidError, match="engine = 'uring': threads or io_uring"):
        read(engine="uring")


@pytest.mark.parametrize("name", ["max_bytes", "max_cache_size_bytes", "capacity_bytes"])
@pytest.mark.parametrize("value", [500 << 30, "500GiB", str(500 << 30)])
def test_the_bound_has_aliases_and_units(read, name, value):
    assert read(**{name: value}).max_bytes == 500 << 30


def test_a_setting_given_under_two_names_is_refused(read):
    with pytest.raises(InvalidError, match=r"'max_bytes' is given twice.*'capacity_bytes'"):
        read(max_bytes=1 << 30, capacity_bytes=1 << 30)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("max_byte", "max_bytes"),
        ("n_reads_threads", "n_read_threads"),
        ("root_dirs", "root_dir"),
        ("capacity_byte", "capacity_bytes"),
        ("enable_kv_event", "enable_kv_events"),
        ("pin_ttl", "pin_ttl_s"),
        ("max_inflight", "max_inflight_bytes"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_one(read, wrong, right):
    with pytest.raises(InvalidError, match=rf"unknown setting '{wrong}'.*did you mean '{right}'"):
        read(**{wrong: 1})


def test_an_unknown_setting_near_no_other_is_refused_with_the_list(read):
    with pytest.raises(InvalidError, match=r"unknown setting 'zzz'.*max_bytes"):
        read(zzz=1)


BAD = {
    "root_dir": (["", None, 3, ["/kv"]], "directory"),
    "n_read_threads": ([0, -1, 257, "4", 1.5, True], "1 to 256"),
    "n_write_threads": ([0, -1, 257, "4", 1.5, True], "1 to 256"),
    "enable_kv_events": (["yes", 1, None], "true or false"),
    "verify": (["no", 0, None], "true or false"),
    "locality": (["", "MOON", 3], "LOCAL or REMOTE"),
    "max_bytes": ([0, -1, "0", "much", 1.5, True, [], "9" * 30], "GiB|zero"),
    "min_free_bytes": ([0, -1, "much", 1.5], "GiB|zero"),
    "max_inflight_bytes": ([0, -1, "much", 1.5], "GiB|zero"),
    "io_timeout_s": ([-1, "30", None, True, float("nan"), float("inf")], "seconds"),
    "layout": (["packed", "AUTO", None, 3, True], "auto, fs or pack"),
    "engine": (["uring", "THREADS", None, 3, True], "threads or io_uring"),
    "bounce": (["maybe", "AUTO", None, 3, True], "auto, always or never"),
    "read_only": (["no", 0, None], "true or false"),
    "policy": (["fifo", "LRU", None, 3], "lru, arc or s3fifo"),
    "namespace_extra": ([3, None], "a text"),
    "pin_ttl_s": ([-1, "600", None, True, float("nan"), float("inf")], "seconds"),
    "promote_share": ([0, -0.5, 1.5, "0.5", None, True, float("nan")], "greater than 0 and at most 1"),
    "promote_wait_s": ([-1, "10", None, True, float("nan"), float("inf")], "seconds"),
    "miss_ttl_s": ([-0.1, "1", None, True, float("nan"), float("inf")], "seconds"),
}


def test_every_setting_has_bad_values(read):
    assert set(BAD) == set(read().__dataclass_fields__)


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, (values, _) in BAD.items() for v in values])
def test_a_bad_value_names_setting_value_and_what_is_allowed(read, name, value):
    with pytest.raises(InvalidError, match=BAD[name][1]) as e:
        read(**{name: value})
    assert name in str(e.value)
    assert repr(value) in str(e.value)


def test_every_mistake_of_a_stanza_is_in_the_one_error(read):
    with pytest.raises(InvalidError) as e:
        read(root_dir="", max_byte=1, policy="fifo", pin_ttl_s=0, max_inflight_bytes=True)
    for part in ("root_dir = ''", "'max_bytes'", "policy = 'fifo'", "pin_ttl_s = 0", "max_inflight_bytes = True"):
        assert part in str(e.value)


def test_a_directory_may_be_no_unicode(read):
    assert read(root_dir="/kv/caf\udce9").root_dir == "/kv/caf\udce9"
    with pytest.raises(InvalidError, match="namespace_extra.*no Unicode"):
        read(namespace_extra="caf\udce9")
