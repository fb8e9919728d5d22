"""llama.cpp's server alone, on a TCP port: `python -m tests.bench.raw_engine OPTIONS PORT`."""

from __future__ import annotations

import json
import signal
import sys

import xllamacpp

from modeld.worker.loaders.llama_server.xllama import configure

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    params = xllamacpp.CommonParams()
    configure(params, json.loads(sys.argv[1]))
    params.hostnames = ["127.0.0.1"]
    params.port = int(sys.argv[2])
    server = xllamacpp.Server(params)
    while True:
        signal.pause()
