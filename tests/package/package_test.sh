#!/usr/bin/env bash
# Installs ouro, moves the prefix, and builds and runs a program against it by find_package and by pkg-config.
# Usage: package_test.sh CMAKE BUILD_DIR SOURCE_DIR CXX [FLAGS...]. Run by ctest.
set -euo pipefail
cmake=$1 build=$2 source=$3 cxx=$4
shift 4
flags=("$@")

work=$(mktemp -d "${TMPDIR:-/tmp}/ouro-package-XXXXXX")
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

"$cmake" --install "$build" --strip --prefix "$work/first" >"$work/install.log" || { cat "$work/install.log"; fail "install"; }
mv "$work/first" "$work/moved"
prefix=$work/moved
libdir=$(dirname "$(find "$prefix" -name libouro.so.0)")
[[ -d $libdir ]] || fail "no libouro.so.0 was installed"

echo "-- no file of the prefix, text or program, names the prefix itself or the source or build tree"
named=$(grep -rlaF -e "$work" -e "$source" -e "$build" "$prefix" || true)
[[ -z $named ]] || fail "absolute paths in: $named"

echo "-- headers and library, no more"
(cd "$prefix/include" && find . -type f | sort) | grep -v '^\./ouro/' && fail "headers outside include/ouro"
for header in ouro/ouro.hpp ouro/runtime/core/status.h ouro/runtime/core/types.h; do
  [[ -f $prefix/include/$header ]] || fail "$header is missing"
done
exported=$(nm -D --defined-only "$libdir/libouro.so.0" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | c++filt)
foreign=$(grep -vE '^ouro_|(^| )ouro::' <<<"$exported" || true)
[[ -z $foreign ]] || fail "exports what is not ouro's: $foreign"
inner=$(grep -E 'ouro::(flow|kernels|arith|env|log|wire)::' <<<"$exported" || true)
[[ -z $inner ]] || fail "exports its insides: $inner"
inner=$(grep -E '(^| for )ouro::(rt|gpu|device|transport)::|::(State|Saved)\b' <<<"$exported" || true)
[[ -z $inner ]] || fail "exports what is behind its classes: $inner"
grep -q 'ouro::Status::message' <<<"$exported" || fail "Status::message is not exported"
versions=$(readelf --version-info "$libdir/libouro.so.0")
grep -q 'OURO_0' <<<"$versions" || fail "no version node OURO_0"

run() {  # alone, and as two ranks
  LD_LIBRARY_PATH=$libdir "$1" || fail "$1"
  if [[ -x $prefix/bin/ouro-run ]]; then
    LD_LIBRARY_PATH=$libdir "$prefix/bin/ouro-run" -n 2 --timeout 60 "$1" || fail "$1 as two ranks"
  fi
}

echo "-- find_package"
"$cmake" -S "$source/tests/package/consumer" -B "$work/by-cmake" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_FLAGS="${flags[*]}" >"$work/configure.log" ||
  { cat "$work/configure.log"; fail "find_package"; }
"$cmake" --build "$work/by-cmake" >"$work/build.log" || { cat "$work/build.log"; fail "build by CMake"; }
run "$work/by-cmake/consumer"

echo "-- pkg-config"
export PKG_CONFIG_PATH=$libdir/pkgconfig
# shellcheck disable=SC2046  # words are wanted
"$cxx" -std=c++20 -Wall -Wextra -Werror "${flags[@]}" "$source/tests/package/consumer/main.cc" -o "$work/by-pkg-config" \
  $(pkg-config --cflags --libs ouro) || fail "build by pkg-config"
run "$work/by-pkg-config"

echo "-- tools and data"
[[ -f $prefix/share/ouro/data/digits.csv ]] || fail "digits.csv is missing"
echo "package is whole"
