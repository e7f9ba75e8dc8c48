#!/usr/bin/env bash
# Fuzzes the parsers of outside bytes (tests/system/fuzz). Called by tools/gate fuzz; see its --help.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Finds clang, or clang-14 (its name in Debian 12), with libFuzzer.
find_clang() {
  local clang
  for clang in ${CLANGXX:-} clang++ clang++-14; do
    if command -v "$clang" >/dev/null &&
      echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
      "$clang" -fsanitize=fuzzer -x c++ - -o /dev/null 2>/dev/null; then
      echo "$clang"
      return
    fi
  done
  die "no clang with libFuzzer: apt-get install clang-14 libfuzzer-14-dev"
}

# Configures DIRECTORY for the fuzz targets with clang. Further arguments are passed to cmake.
configure_fuzz() {
  local build=$1 clang launcher=()
  shift
  clang=$(find_clang)
  mkdir -p "$build"
  if command -v ccache >/dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  # -O1: the parsers compile in a third less time, and cases spend most of their time in the sanitizers anyway.
  cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" -DCMAKE_CXX_COMPILER="$clang" \
    -DOURO_UNITY=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DOURO_CUDA=off -DOURO_BENCH=OFF -Wno-dev "${launcher[@]}" "$@" \
    >"$build/configure.log" 2>&1 || { tail -20 "$build/configure.log" >&2; die "cannot configure $build"; }
}

# Reports which lines of the parsers the corpus of the repository reaches, and which further ones inputs of earlier runs reach.
fuzz_coverage() {
  local build=$1 cov=$1-coverage tool=() version
  configure_fuzz "$cov" -DOURO_FUZZ_COVERAGE=on -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O0 -g1"
  version=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$cov/CMakeCache.txt")
  version=$("$version" -dumpversion)
  for name in profdata cov; do
    tool+=("$(command -v "llvm-$name-${version%%.*}" || command -v "llvm-$name" || die "no llvm-$name: apt-get install llvm-${version%%.*}")")
  done
  cmake --build "$cov" -j 2 --target fuzz_coverage >"$cov/build.log" 2>&1 || { tail -20 "$cov/build.log" >&2; die "cannot build $cov"; }
  LLVM_PROFILE_FILE=$cov/raw.profraw timeout -k 10 1800 "$cov/bin/fuzz_coverage" tests/system/fuzz/corpus "$build/corpus"
  "${tool[0]}" merge -sparse "$cov/raw.profraw" -o "$cov/profile"
  "${tool[1]}" export -instr-profile="$cov/profile" "$cov/bin/fuzz_coverage" >"$cov/functions.json"
  "${tool[1]}" export -format=lcov -instr-profile="$cov/profile" "$cov/bin/fuzz_coverage" >"$cov/lines.lcov"
  python3 tests/system/fuzz/coverage.py "$PWD" tests/system/fuzz/parsers.txt "$cov/functions.json" "$cov/lines.lcov"
}

minutes=1 build=build-fuzz coverage='' targets=()
all=$(sed -n 's/^void \([a-z_]*\)(wire::View);.*/\1/p' tests/system/fuzz/targets.h)
while (($#)); do
  case $1 in
    --minutes) minutes=${2:-}; shift 2 || die "--minutes needs a number" ;;
    --target) targets+=("${2:-}"); shift 2 || die "--target needs a name" ;;
    --build) build=${2:-}; shift 2 || die "--build needs a directory" ;;
    --coverage) coverage=yes; shift ;;
    *) die "unknown option $1; see --help" ;;
  esac
done
check_number --minutes "$minutes" 1 1440
[[ -n $build ]] || die "--build needs a directory"
lowest=(nice -n 19 chrt --idle 0)
for target in "${targets[@]}"; do
  grep -qx -- "$target" <<<"$all" || die "no target '$target'; there are: ${all//$'\n'/ }"
done
((${#targets[@]})) || mapfile -t targets <<<"$all"
if [[ $coverage ]]; then fuzz_coverage "$build"; exit; fi
configure_fuzz "$build" -DOURO_FUZZ=on -DOURO_SANITIZE=address,undefined
"${lowest[@]}" cmake --build "$build" -j 2 --target fuzz

code=0
mkdir -p "$build/found"
printf '%-18s %10s %14s  %s\n' target seconds cases result
for target in "${targets[@]}"; do
  mkdir -p "$build/corpus/$target" "$build/seeds/$target"
  log=$build/fuzz_$target.log
  start=$SECONDS
  corpus=("$build/corpus/$target" "$build/seeds/$target")
  [[ ! -d tests/system/fuzz/corpus/$target ]] || corpus+=("tests/system/fuzz/corpus/$target")
  # The timeout catches a fuzzer that hangs: it ends by itself, and -timeout catches slow inputs.
  if OURO_FUZZ_TARGET=$target OURO_FUZZ_SEEDS=$build/seeds/$target "${lowest[@]}" timeout -k 10 $((minutes * 60 + 120)) \
    "$build/bin/fuzz" -max_total_time=$((minutes * 60)) -max_len=4096 -timeout=10 -rss_limit_mb=1024 \
    -print_final_stats=1 -artifact_prefix="$build/found/$target-" "${corpus[@]}" >"$log" 2>&1; then
    result=clean
  else
    result="FOUND SOMETHING: $log" code=1
  fi
  cases=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  printf '%-18s %10s %14s  %s\n' "$target" $((SECONDS - start)) "${cases:-unknown}" "$result"
done
exit $code
