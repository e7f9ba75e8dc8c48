#!/usr/bin/env bash
# Compiles the code that depends on CUDA with the parts of CUDA 12 that Python's package index has. Called by tools/gate.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'TEXT'
Usage: tools/gate cuda12 [--only REGEX] [--build DIRECTORY]

Downloads CUDA 12's headers, static runtime, compiler and assembler (nvidia-cuda-runtime-cu12, -cccl-cu12, -nvrtc-cu12 and
-nvcc-cu12; 140 MB) into OURO_CUDA12 (default: ouro/cuda12 in XDG_CACHE_HOME, ~/.cache), unless they are there; nothing of
the system is changed. Then, in DIRECTORY (default: build-cuda12), at the lowest priority:

  - compiles the units that call CUDA against these headers, warnings being errors, and searches each function that they
    call in the static runtime;
  - compiles the device half of each kernels/gpu/*.cu whose name matches --only (default: all) with that compiler for
    compute_80 and compute_90, and has that assembler make code for sm_80, sm_89, sm_90 and sm_100 of it; a kernel that
    spills there is listed.

The packages have no compiler driver, which would join both halves in one object: nothing is linked and nothing runs.

Exit code: 0 all compiled, 1 something did not, 2 wrong usage, or no packages.
TEXT
}

only=. build=build-cuda12
while (($#)); do
  case $1 in
    --only) only=${2:-}; shift 2 || die "--only needs a regular expression" ;;
    --build) build=${2:-}; shift 2 || die "--build needs a directory" ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown option $1; see --help" ;;
  esac
done
[[ -n $only && -n $build ]] || die "empty values; see --help"
home=${OURO_CUDA12:-${XDG_CACHE_HOME:-$HOME/.cache}/ouro/cuda12}
ptxas=$home/nvidia/cuda_nvcc/bin/ptxas runtime=$home/nvidia/cuda_runtime
lowest=(nice -n 19)
mkdir -p "$build"

if [[ ! -x $ptxas || ! -f $runtime/lib/libcudart_static.a || ! -d $home/nvidia/cuda_cccl || ! -d $home/nvidia/cuda_nvrtc ]]; then
  mkdir -p "$home"
  timeout 600 python3 -m pip download -q --no-deps -d "$home/wheels" nvidia-cuda-{runtime,cccl,nvrtc,nvcc}-cu12 ||
    die "pip cannot download CUDA 12"
  for wheel in "$home"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$home"; done
  chmod +x "$ptxas"
fi
"$ptxas" --version | tail -2 | head -1

code=0
for unit in kernels/device/cuda/cuda*.cc kernels/device/cuda/nvml.cc; do
  if "${lowest[@]}" g++ -std=c++20 -O1 -Wall -Wextra -Wconversion -Werror -I. -Iapi/include -isystem "$runtime/include" \
    -c "$unit" -o "$build/$(basename "$unit" .cc).o"; then
    printf 'compiles: %s\n' "$unit"
  else
    printf 'FAILED: %s\n' "$unit"
    code=1
  fi
done
nm -u "$build"/*.o | awk '$1 == "U" && $2 ~ /^(__cuda|cuda|cu[A-Z])/ { print $2 }' | sort -u >"$build/called"
nm "$runtime/lib/libcudart_static.a" 2>/dev/null | awk '$2 == "T" { print $3 }' | sort -u >"$build/there"
[[ -s $build/called ]] || { echo 'FAILED: the units call nothing of CUDA'; code=1; }
if missing=$(comm -23 "$build/called" "$build/there") && [[ -n $missing ]]; then
  printf 'FAILED: not in the static runtime: %s\n' "${missing//$'\n'/ }"
  code=1
else
  printf '%d functions of CUDA are called, all of them in the static runtime\n' "$(wc -l <"$build/called")"
fi

for source in kernels/gpu/*.cu; do
  name=$(basename "$source" .cu)
  [[ $name =~ $only ]] || continue
  for pair in 80:sm_80,sm_89 90:sm_90,sm_100; do
    ptx=$build/$name-${pair%%:*}.ptx
    if ! "${lowest[@]}" timeout -k 10 1200 python3 tools/gates/nvrtc.py "$home" "$source" "compute_${pair%%:*}" "$ptx" \
      >"$build/$name.log" 2>&1 || ! grep -q '\.entry' "$ptx"; then
      printf 'FAILED: %s for compute_%s: %s\n' "$source" "${pair%%:*}" "$build/$name.log"
      code=1
      continue
    fi
    for arch in ${pair#*:}; do for one in ${arch//,/ }; do
      if "${lowest[@]}" timeout -k 10 1200 "$ptxas" -v -arch="$one" "$ptx" -o "$build/$name-$one.cubin" >"$build/$name-$one.log" 2>&1; then
        awk -v name="$name $one" '/Used [0-9]+ registers/ { ++n } / bytes spill stores/ { s += !/ 0 bytes spill stores/ }
          END { printf "compiles: %s: %d kernels, %d spill\n", name, n, s }' "$build/$name-$one.log"
      else
        printf 'FAILED: %s for %s: %s\n' "$name" "$one" "$build/$name-$one.log"
        code=1
      fi
    done; done
  done
done
exit $code
