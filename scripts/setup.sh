#!/usr/bin/env bash
# Installs what a build needs: Debian packages, and LibTorch from its Python wheel. A second run does nothing.
#
# Torch_DIR, CMAKE_PREFIX_PATH or LIBTORCH in the environment name a LibTorch of your own; then nothing is downloaded.
set -euo pipefail

torch_version=2.11.0
packages=(g++ cmake ninja-build ccache mold clang-format git ca-certificates python3-venv
          libfmt-dev libcxxopts-dev libtomlplusplus-dev nlohmann-json3-dev zlib1g-dev libssl-dev libprotozero-dev catch2
          dataset-fashion-mnist)

say() { echo "setup: $*"; }

missing_packages() {
  local package
  for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
  done
}

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian system; these packages must be there: ${packages[*]}"
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages)
  if [[ ${#missing[@]} -eq 0 ]]; then
    say "all Debian packages are installed"
    return
  fi
  local as_root=(env)
  if [[ $(id -u) -ne 0 ]]; then
    as_root=(sudo -n env)
    if ! sudo -n true 2>/dev/null; then
      say "packages are missing and this user may not install them. Run this, then $0 again:"
      echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
      exit 1
    fi
  fi
  say "installing ${missing[*]} (about a minute)"
  "${as_root[@]}" apt-get -qq update
  "${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
}

# Prints the user's own LibTorch with the variable that named it; fails if there is none.
users_torch() {
  local folder
  if [[ -n ${Torch_DIR:-} ]]; then
    echo "$Torch_DIR (from Torch_DIR)"
    return
  fi
  local folders=()
  IFS=: read -ra folders <<<"${CMAKE_PREFIX_PATH:-}"
  for folder in "${folders[@]}"; do
    if [[ -d $folder/include/torch/csrc ]]; then
      echo "$folder (from CMAKE_PREFIX_PATH)"
      return
    fi
  done
  [[ -n ${LIBTORCH:-} ]] && echo "$LIBTORCH (from LIBTORCH)"
}

# The wheel is whole when pip wrote the list of its files, which it does last.
wheel_is_complete() {
  compgen -G "$1/lib/python3*/site-packages/torch/lib/libtorch_cpu.so" >/dev/null &&
    compgen -G "$1/lib/python3*/site-packages/torch-$torch_version.dist-info/RECORD" >/dev/null &&
    compgen -G "$1/lib/python3*/site-packages/numpy-*.dist-info/RECORD" >/dev/null
}

install_wheel() {
  local cache=${XDG_CACHE_HOME:-$HOME/.cache}/libqat
  local venv=$cache/torch-$torch_version
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock 9  # another checkout may be installing
  if wheel_is_complete "$venv"; then
    say "LibTorch $torch_version is in $venv"
    return
  fi
  say "installing LibTorch $torch_version into $venv (about 2 minutes, 5 GB)"
  local python=/usr/bin/python3
  [[ -x $python ]] || python=python3
  "$python" -m venv --clear "$venv"  # also clears what an interrupted run left
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "torch==$torch_version" numpy
  wheel_is_complete "$venv" || { say "the wheel in $venv is not complete"; exit 1; }
}

install_packages
if torch=$(users_torch); then
  say "LibTorch: $torch"
else
  install_wheel
fi
