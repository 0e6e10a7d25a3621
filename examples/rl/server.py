# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A vLLM in processes of its own: it is started, asked for tokens, and ended."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

OPTIONS = [
    "--skip-tokenizer-init", "--enable-scale-out", "--dtype", "float32", "--enforce-eager",
    "--max-model-len", "64", "--no-enable-prefix-caching", "--disable-uvicorn-access-log",
    "--weight-transfer-config", '{"backend": "ferry"}',
]  # fmt: skip
VARIABLES = {
    "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_SERVER_DEV_MODE": "1", "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
SECONDS_TO_START, SECONDS_TO_ANSWER, SECONDS_TO_END = 900, 300, 30  # a busy machine is no failure


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """``folder`` has the model that it begins with; what it says goes to the file ``log``."""

    def __init__(self, folder, n_workers, log):
        port = free_port()
        self.url, self._log = "http://127.0.0.1:%d" % port, log
        # What "vllm serve" runs; that command of vllm-cpu does not find its own version.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder,
                   "--host", "127.0.0.1", "--port", str(port),
                   "--tensor-parallel-size", str(n_workers), *OPTIONS]
        with open(log, "w") as file:
            self._process = subprocess.Popen(command, env={**os.environ, **VARIABLES}, stdout=file,
                                             stderr=subprocess.STDOUT, start_new_session=True)

    def _ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, kind)
        with urllib.request.urlopen(request, timeout=SECONDS_TO_ANSWER) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def wait(self):
        """Comes back when it serves."""
        end = time.monotonic() + SECONDS_TO_START
        while True:
            with contextlib.suppress(urllib.error.URLError):
                return self._ask("/health")
            if self._process.poll() is not None or time.monotonic() > end:
                raise SystemExit("the server does not come up: see the end of " + self._log)
            time.sleep(0.1)

    def generate(self, prompt, n_tokens, n=1, temperature=0.0, seed=0):
        """Tokens after a prompt, ``n`` times."""
        answer = self._ask("/inference/v1/generate", {
            "token_ids": prompt,
            "sampling_params": {"max_tokens": n_tokens, "n": n, "temperature": temperature,
                                "seed": seed, "ignore_eos": True, "detokenize": False}})
        return [choice["token_ids"] for choice in answer["choices"]]

    def version(self):
        """Which weights it has, as the last update told it."""
        return int(self._ask("/weight_info")["weight_version"])

    def stop(self):
        """Ends it, and all processes that it has started."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(SECONDS_TO_END)
