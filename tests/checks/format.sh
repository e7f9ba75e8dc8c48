#!/usr/bin/env bash
# Checks that sources are formatted according to .clang-format. Usage: format.sh ROOT. Other versions of clang-format
# break lines differently: without the expected version, exits with 77.
set -euo pipefail
readonly kVersion=14
format=$(command -v clang-format-$kVersion || command -v clang-format || true)
if [[ -z $format || $("$format" --version) != *" $kVersion."* ]]; then
  echo "SKIP: not installed: clang-format $kVersion"
  exit 77
fi
cd "$1"
find api bench kernels runtime tests tools transport -regex '.*\.\(cc\|h\|hpp\|c\|cu\)' -print0 |
  xargs -0 -n 40 -P 2 "$format" --dry-run -Werror
