#!/usr/bin/env bash
# Everything that must hold before a change goes in: format, layers, warnings, tests, the installed package.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { echo "== $* ($(date +%H:%M:%S))"; }

step "set up"
scripts/setup.sh

step "check the format"
scripts/format.sh --check
step "check the layers"
scripts/check_layers.sh

step "build (from nothing up to half an hour on two cores)"
cmake --preset release
cmake --build --preset release

step "test, also the installed package with the README's program"
ctest --preset release -j2
