#!/usr/bin/env bash
# Installs a build, then configures, builds and runs this project against what was installed.
# usage: run.sh <build folder>
set -euo pipefail
build=$(cd "$1" && pwd)
prefix=$build/consumer/prefix
rm -rf "$prefix"

cmake --install "$build" --prefix "$prefix" >/dev/null
cmake -S "$(dirname "$0")" -B "$build/consumer/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -Dqat_ROOT="$prefix"
cmake --build "$build/consumer/build"
cd "$build/consumer"  # the program writes its file into the working folder
build/readme_program
