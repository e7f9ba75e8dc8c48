#!/usr/bin/env bash
# Installs ouro, moves the prefix, and builds and runs a program against it with find_package and with pkg-config.
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

run() {  # alone, and as two ranks; by what the build put into the program, with no word of where the library is
  env -u LD_LIBRARY_PATH "$1" || fail "$1"
  if [[ -x $prefix/bin/ouro-run ]]; then
    env -u LD_LIBRARY_PATH "$prefix/bin/ouro-run" -n 2 --timeout 60 "$1" || fail "$1 as two ranks"
  fi
}

echo "-- find_package"
"$cmake" -S "$source/tests/system/package/consumer" -B "$work/by-cmake" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_FLAGS="${flags[*]}" >"$work/configure.log" ||
  { cat "$work/configure.log"; fail "find_package"; }
"$cmake" --build "$work/by-cmake" >"$work/build.log" || { cat "$work/build.log"; fail "build by CMake"; }
run "$work/by-cmake/consumer"

echo "-- libnccl.so.2, which nothing finds unasked: find_package(NCCL) and pkg-config"
nccl=$libdir/ouro/nccl
[[ $(readelf -dW "$nccl/libnccl.so.2") == *"[libnccl.so.2]"* ]] || fail "libnccl.so.2 is not in its place"
for other in "$libdir/libnccl.so.2" "$libdir/cmake/NCCL" "$libdir/pkgconfig/nccl.pc" "$prefix/include/nccl.h"; do
  [[ ! -e $other ]] || fail "$other: a program that wants NVIDIA's would find it"
done
mkdir "$work/nccl"
cp "$source/tests/api/nccl/header_test.c" "$work/nccl/program.c"
cat >"$work/nccl/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.20)
project(program C)
find_package(NCCL 2.20 REQUIRED)
add_executable(program program.c)
target_link_libraries(program PRIVATE NCCL::nccl)
END
{ "$cmake" -S "$work/nccl" -B "$work/nccl/build" -DCMAKE_PREFIX_PATH="$nccl/cmake" && "$cmake" --build "$work/nccl/build"; } \
  >"$work/nccl.log" || { cat "$work/nccl.log"; fail "find_package(NCCL)"; }
env -u LD_LIBRARY_PATH "$work/nccl/build/program" | grep -F "$nccl/libnccl.so.2" || fail "a program by find_package(NCCL)"
export PKG_CONFIG_PATH=$libdir/pkgconfig:$nccl/pkgconfig
for name in ouro-nccl nccl; do
  # shellcheck disable=SC2046
  cc "$work/nccl/program.c" $(pkg-config --cflags --libs $name) -o "$work/nccl/$name" || fail "build by $name.pc"
  LD_LIBRARY_PATH=$nccl "$work/nccl/$name" || fail "a program by $name.pc"
done

echo "-- pkg-config, by the command line of the README"
export PKG_CONFIG_PATH=$libdir/pkgconfig
line=$(grep -m1 '^g++ -std=c++20 program\.cc ' "$source/README.md") || fail "the README has no such line"
mkdir "$work/by-pkg-config"
cp "$source/tests/system/package/consumer/main.cc" "$work/by-pkg-config/program.cc"
(cd "$work/by-pkg-config" && g++() { command "$cxx" -Wall -Wextra -Werror "${flags[@]}" "$@"; } && eval "$line") ||
  fail "build by pkg-config: $line"
run "$work/by-pkg-config/program"

echo "-- tools and data"
[[ -f $prefix/share/ouro/data/digits.csv ]] || fail "digits.csv is missing"
if [[ -x $prefix/bin/ouro-run ]]; then
  tools=$(sed -n 's/^| `\([a-z-]*\)` |.*/\1/p' "$source/README.md")
  [[ $(wc -w <<<"$tools") -ge 7 ]] || fail "the table of tools in the README was not understood: $tools"
  # netlab's emulated networks need tapnet next to it; the README also promises the names of nccl-tests.
  for tool in $tools tapnet all_reduce_perf alltoall_perf; do
    [[ -x $prefix/bin/$tool ]] || fail "$tool is in the README and was not installed"
  done
  "$prefix/bin/all_reduce_perf" -n 2 -b 1K -e 1K >/dev/null || fail "all_reduce_perf"
  "$prefix/bin/netlab" help | grep -q 'netlab run NAME' || fail "netlab help"
fi
echo "package is whole"
