#!/usr/bin/env bash
# Measures the speed of the kernels and of training steps: prints tables, writes bench.json (or the file given).
# Run it on a quiet machine. Threads are pinned, so that two of them never share a core.
set -euo pipefail
cd "$(dirname "$0")/.."
json=${1:-bench.json}
bin=build/release/bin

scripts/setup.sh
cmake --preset release >/dev/null
cmake --build --preset release --target fake_quantize_bench train_step_bench

export OMP_PROC_BIND=true OMP_PLACES=cores
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
"$bin/fake_quantize_bench" --json "$parts/1.json"
echo
for model in resnet20 mobilenet; do
  "$bin/train_step_bench" --model "$model" --json "$parts/$model.json"
  echo
done
python3 - "$json" "$parts"/*.json <<'PY'
import json, sys
merged = {}
for path in sys.argv[2:]:
    merged.update(json.load(open(path)))
json.dump(merged, open(sys.argv[1], "w"), indent=2)
PY
echo "written: $json"
