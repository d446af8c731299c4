#!/usr/bin/env bash
# vLLM on a GPU machine: KV cache in GPU memory, then in host memory, then on a local NVMe, each bounded.
# Needs vLLM 0.30 to 0.33 and kvweir in one environment.
#
#   MODEL=meta-llama/Llama-3.1-8B-Instruct KV_ROOT=/mnt/nvme/kv ./serve-gpu.sh [more options of vllm serve]
#
# KV_ROOT     the tier's directory, on a local file system with O_DIRECT (ext4, xfs)
# KV_BYTES    its bound; leave 5 % of the file system free    (default: 500GiB)
# HOST_BYTES  host memory; pinned, in /dev/shm                (default: 32 GiB)
set -euo pipefail
: "${MODEL:?name a model}" "${KV_ROOT:?name a directory on a local disk}"
export PYTHONHASHSEED=0
connector=$(
    KV_BYTES=${KV_BYTES:-500GiB} HOST_BYTES=${HOST_BYTES:-34359738368} KV_ROOT=$KV_ROOT python3 - <<'PY'
import json, os
print(json.dumps({
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": int(os.environ["HOST_BYTES"]),
        "secondary_tiers": [{
            "type": "KvweirFsTier",
            "module_path": "kvweir.vllm",
            "root_dir": os.environ["KV_ROOT"],
            "max_bytes": os.environ["KV_BYTES"],
            "backpressure": {"backpressure_cls": "kvweir.vllm.KvweirDetector"},
        }],
    },
}))
PY
)
exec vllm serve "$MODEL" --enable-prefix-caching --shutdown-timeout 10 --kv-transfer-config "$connector" "$@"
