#!/usr/bin/env bash
# Sets up, builds the programs, and trains a small ResNet on Fashion-MNIST in float and then in 8 bits.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/quickstart

scripts/setup.sh
echo "quickstart: building the programs (a few minutes the first time)"
cmake --preset release >/dev/null
cmake --build --preset release --target qat-train qat-eval

echo "quickstart: training"
build/release/bin/qat-train --data fashion-mnist --model resnet8 --float-epochs 2 --qat-epochs 1 --out "$out" "$@"

echo
echo "Open $PWD/$out/report.html in a browser. All of $out:"
ls -1 "$out"
