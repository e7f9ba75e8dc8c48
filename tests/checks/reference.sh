#!/usr/bin/env bash
# Checks that each public declaration is documented. Usage: reference.sh ROOT SCRATCH. Without Doxygen
# 1.9: 77.
set -euo pipefail
if ! command -v doxygen >/dev/null || [[ $(doxygen --version) != 1.9.* ]]; then
  echo "SKIP: not installed: Doxygen 1.9"
  exit 77
fi
root=$1 scratch=$2
fail() { echo "FAILED: $*" >&2; exit 1; }

"$root/tools/docs" --no-apt --output="$scratch/pages"
for name in all_reduce ouro_all_reduce GossipTrainer premul bf16; do
  grep -rqw --include='*.html' "$name" "$scratch/pages" || fail "$name is not in the reference"
done

# Tests the check itself with a copy of the headers that has one undocumented declaration.
rm -rf "$scratch/copy"
mkdir -p "$scratch/copy/docs" "$scratch/copy/runtime/core"
cp -r "$root/api" "$root/tools" "$root/CMakeLists.txt" "$scratch/copy"
cp "$root/docs/Doxyfile" "$root/docs/reference.md" "$scratch/copy/docs"
cp "$root"/runtime/core/{status,types}.h "$scratch/copy/runtime/core"
sed -i 's/^OURO_API const char\* version();.*/&\n\nOURO_API int nobody_documented_this();/' "$scratch/copy/api/include/ouro/ouro.hpp"
if "$scratch/copy/tools/docs" --no-apt --output="$scratch/copy/pages" >"$scratch/copy/log" 2>&1; then
  fail "a declaration without documentation passed"
fi
grep -q "nobody_documented_this() (function) .* is not documented" "$scratch/copy/log" || fail "$(cat "$scratch/copy/log")"
