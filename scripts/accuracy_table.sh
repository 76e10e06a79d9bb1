#!/usr/bin/env bash
# Trains a model on Fashion-MNIST in float (3 epochs) and from there with quantizers (1 epoch each), and prints the mean test
# accuracy over seeds as a table: quantizers x widths of weights/activations.
#   accuracy_table.sh [quantizers] [widths] [seeds] [model] [options]    e.g. accuracy_table.sh "lsq pact" "4/4 2/4/8" "0 1" cnn
# Options are those of qat-train for the quantized training, in place of "--qat-epochs 1 --qat-learning-rate 0.01".
# A quantizer may be WEIGHTS+ACTIVATIONS ("lsq+pact"). A third width is that of the first and the last layer's weights.
# Runs that exist in build/accuracy are not repeated. Each run takes one thread; as many run side by side as there are cores.
set -euo pipefail
cd "$(dirname "$0")/.."
quantizers=${1:-affine lsq lsq_plus tqt fp_d_xmax lsq+pact}
widths=${2:-8/8 4/4 3/3 2/4 2/4/8 2/2}
seeds=${3:-0 1}
model=${4:-cnn}
standard="--qat-epochs 1 --qat-learning-rate 0.01"
options=${5:-$standard}
out=build/accuracy/$model
folder=$out # of the quantized runs
[[ $options == "$standard" ]] || folder=$out/${options//[^a-z0-9.]/}
[[ $model == cnn ]] && first=conv1 || first=conv
train=(build/release/bin/qat-train --data fashion-mnist --model "$model" --batch-size 128 --momentum 0.9 --weight-decay 0.0005
       --schedule cosine --record-batches 50 --input-bits 8 --threads 1)

run() { # folder, options
  [[ -f $1/summary.json ]] && return
  while (($(jobs -rp | wc -l) >= $(nproc))); do wait -n; done
  "${train[@]}" --out "$@" >/dev/null &
}
finish() { while (($(jobs -p | wc -l) > 0)); do wait -n; done; } # a run that fails ends the script

for seed in $seeds; do
  run "$out/float-$seed" --seed "$seed" --float-epochs 3 --learning-rate 0.05 --qat-epochs 0
done
finish
for quantizer in $quantizers; do
  for width in $widths; do
    IFS=/ read -r weights activations edges <<<"$width"
    for seed in $seeds; do
      run "$folder/$quantizer-${width//\//-}-$seed" --seed "$seed" --init "$out/float-$seed/checkpoints/float.qat" \
        --float-epochs 0 $options --weight-quantizer "${quantizer%+*}" \
        --activation-quantizer "${quantizer#*+}" --weight-bits "$weights" --activation-bits "$activations" \
        ${edges:+--layer-weight-bits "$first=$edges,fc=$edges"}
    done
  done
done
finish

python3 - "$out" "$folder" "$quantizers" "$widths" "$seeds" <<'PY'
import json, sys
out, folder, quantizers, widths, seeds = *sys.argv[1:3], *(text.split() for text in sys.argv[3:])
def accuracy(run, key):
    return sum(100 * json.load(open(f"{run}-{seed}/summary.json"))[key] for seed in seeds) / len(seeds)
base = accuracy(f"{out}/float", "float_accuracy")
print(f"float {base:.2f} % (seeds {', '.join(seeds)})\n")
print("| quantizer | " + " | ".join(widths) + " |\n|---" * 1 + "|---" * len(widths) + "|")
for quantizer in quantizers:
    row = [accuracy(f"{folder}/{quantizer}-{width.replace('/', '-')}", "qat_accuracy") for width in widths]
    print(f"| {quantizer} | " + " | ".join(f"{value:.2f} ({value - base:+.2f})" for value in row) + " |")
PY
