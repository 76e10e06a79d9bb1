#!/usr/bin/env bash
# Each package may include only headers of itself and of the packages below it: libqat <- modules <- schedulers <- apps.
# Names the file and the line of each include against that direction, and fails.
set -euo pipefail
cd "$(dirname "$0")/.."
git rev-parse --git-dir >/dev/null

packages=(libqat modules schedulers apps)
declare -A level_of  # header as it is included -> level of the package that owns it
for level in "${!packages[@]}"; do
  package=${packages[level]}
  while read -r file; do
    header=${file#"$package"/}
    header=${header#include/}
    header=${header#src/}
    level_of[$header]=${level_of[$header]:-$level}  # the lowest owner of an equally named private header
  done < <(git ls-files --cached --others --exclude-standard -- "$package/*.h" "$package/*.cuh")
done

bad=0
for level in "${!packages[@]}"; do
  while IFS=: read -r file line header; do
    owner=${level_of[$header]:-}
    if [[ -n $owner && $owner -gt $level ]]; then
      echo "$file:$line: ${packages[level]} may not include <$header> of ${packages[owner]}"
      bad=1
    fi
  done < <(git grep --untracked -nE '^ *# *include *[<"]' -- "${packages[level]}/*" |
             sed -E 's/^([^:]*:[0-9]+:).*[<"]([^>"]*)[>"].*/\1\2/')
done
[[ $bad -eq 0 ]] && echo "layers: libqat <- modules <- schedulers <- apps holds"
exit $bad
