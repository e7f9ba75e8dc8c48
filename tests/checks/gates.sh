#!/usr/bin/env bash
# Checks that each gate that tools/gate --help names checks its arguments, and that each file of tools/gates is called.
# Usage: gates.sh ROOT.
set -euo pipefail
cd "$1"

fail() { echo "gates: $*" >&2; exit 1; }

mapfile -t names < <(tools/gate --help | sed -nE 's,^(Usage:|      ) tools/gate ([a-z0-9|]+).*,\2,p' | tr '|' '\n')
((${#names[@]} >= 14)) || fail "--help names only: ${names[*]}"
for name in "${names[@]}"; do
  code=0
  said=$(tools/gate "$name" --nonsense 2>&1) || code=$?
  [[ $code == 2 && $said == *--nonsense* ]] || fail "$name --nonsense: exit $code, $said"
done
for file in tools/gates/*.sh; do
  name=$(basename "$file" .sh)
  [[ $name =~ ^(common|sanitizers)$ || " ${names[*]} " == *" $name "* ]] || fail "--help does not name $file"
done
for words in "tsan --minutes 0" "explore --minutes 1441" "chaos --minutes x"; do
  code=0
  # shellcheck disable=SC2086
  said=$(tools/gate $words 2>&1) || code=$?
  [[ $code == 2 && $said == "gate: --minutes takes 1 to 1440" ]] || fail "$words: exit $code, $said"
done
echo "${#names[@]} gates check their arguments"
