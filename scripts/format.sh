#!/usr/bin/env bash
# Formats all C++ and CUDA files of the repository; with --check only names those that differ, and fails.
set -euo pipefail
cd "$(dirname "$0")/.."

action=(-i)
[[ ${1:-} == --check ]] && action=(--dry-run --Werror --ferror-limit=1)
git ls-files -z '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 -r clang-format "${action[@]}"
