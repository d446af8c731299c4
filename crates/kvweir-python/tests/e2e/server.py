"""``vllm serve`` as a process on loopback, and clients that load it."""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import host
from engine import prompt
from places import MODEL, VLLM_ENV

READY_S = 600
ANSWER_S = 300


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Server:
    """One lifetime of ``vllm serve``."""

    def __init__(
        self,
        env: str,
        log: Path,
        tiers: list[dict[str, Any]],
        *more: str,
        cpu_bytes: int = 64 << 20,
        spec: str = "KvweirOffloadingSpec",
    ) -> None:
        self.port = _free_port()
        self.log = log
        stanza = {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "spec_name": spec,
                "spec_module_path": "kvweir.vllm",
                "cpu_bytes_to_use": cpu_bytes,
                "secondary_tiers": tiers,
            },
        }
        # what `vllm serve` runs; the command itself wants a distribution called vllm, which cpu33 is not
        command = [str(VLLM_ENV), env, "python", "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL)]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", "tiny"]
        command += ["--dtype", "float32", "--enforce-eager", "--block-size", "32", "--max-model-len", "8192"]
        command += ["--max-num-batched-tokens", "8192", "--max-num-seqs", "8", "--enable-prefix-caching"]
        # 512 blocks: prompts soon have to come from the connector
        command += ["--num-gpu-blocks-override", "512", "--disable-uvicorn-access-log"]
        command += ["--kv-transfer-config", json.dumps(stanza), *more]
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "INFO"}
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True, env=environment)

    def __enter__(self) -> "Server":
        began = time.monotonic()
        while time.monotonic() - began < READY_S:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended: ...{self.log.read_text()[-3000:]}")
            try:
                if self.ask("GET", "/health")[0] == 200:
                    print(f"server ready after {time.monotonic() - began:.0f} s, log {self.log}")
                    return self
            except OSError:
                time.sleep(0.5)
        raise AssertionError("the server does not come up")

    def __exit__(self, *_: object) -> None:
        host.stop(self.process)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def complete(self, seed: int, length: int, tokens: int = 8) -> str:
        """The greedy answer to a prompt of the tests."""
        body = {"model": "tiny", "prompt": prompt(seed, length), "max_tokens": tokens, "temperature": 0}
        status, answer = self.ask("POST", "/v1/completions", {**body, "ignore_eos": True})
        if status != 200:
            raise AssertionError(f"status {status}: {answer[:500]!r}")
        return str(json.loads(answer)["choices"][0]["text"])

    def metrics(self) -> dict[str, float]:
        """The text of ``/metrics``, summed over engine and model labels."""
        out: dict[str, float] = {}
        for line in self.ask("GET", "/metrics")[1].decode().splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                bare = name.partition("{")[0]
                reason = name.partition('reason="')[2].partition('"')[0]
                key = f"{bare}:{reason}" if reason and bare.startswith("vllm:kvweir") else bare
                out[key] = out.get(key, 0.0) + float(value)
        return out

    def settled_metrics(self) -> dict[str, float]:
        """Metrics after a few more steps: an idle engine reports nothing."""
        for _ in range(4):
            time.sleep(0.6)
            self.complete(5, 3, 1)
        return self.metrics()

    def terminate(self) -> float:
        """Sends SIGTERM to the front end as a supervisor would; seconds until it was gone."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        return time.monotonic() - began


class Sampler:
    """Looks at a number from outside, a hundred times a second."""

    def __init__(self, look: Callable[[], int]) -> None:
        self._look = look
        self._end = threading.Event()
        self.worst = 0
        self.looks = 0
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def _run(self) -> None:
        while not self._end.wait(0.01):
            self.worst = max(self.worst, self._look())
            self.looks += 1

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


class Load:
    """Clients that ask a skewed choice of prompts, each after its last answer, until told to end."""

    def __init__(self, server: Server, clients: int, prompts: list[tuple[int, int]]) -> None:
        self.answered = 0
        self.errors: list[str] = []
        self.answers: dict[tuple[int, int], set[str]] = {}
        self._server = server
        self._prompts = prompts
        self._weights = [1 / (i + 1) for i in range(len(prompts))]
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(n,), name=f"client-{n}", daemon=True) for n in range(clients)
        ]

    def _run(self, n: int) -> None:
        choice = random.Random(n)
        while not self._end.is_set():
            (wanted,) = choice.choices(self._prompts, self._weights)
            try:
                text = self._server.complete(*wanted)
            except (OSError, AssertionError, http.client.HTTPException) as e:
                with self._lock:
                    self.errors.append(f"{type(e).__name__}: {e}")
                return
            with self._lock:
                self.answered += 1
                self.answers.setdefault(wanted, set()).add(text)

    def __enter__(self) -> "Load":
        for t in self._threads:
            t.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for t in self._threads:
            t.join(ANSWER_S)
