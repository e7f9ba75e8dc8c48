#!/usr/bin/env bash
# Executes the PTX that nvcc generates (docs/design/ptx.md). Called by tools/gate ptx; see its --help.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

minutes=1 build=build nvcc=${NVCC:-} cuda12=
while (($#)); do
  case $1 in
    --minutes) minutes=${2:-}; shift 2 || die "--minutes needs a number" ;;
    --build) build=${2:-}; shift 2 || die "--build needs a directory" ;;
    --cuda12) cuda12=${OURO_CUDA12:-${XDG_CACHE_HOME:-$HOME/.cache}/ouro/cuda12}; shift ;;
    *) die "unknown option $1; see --help" ;;
  esac
done
check_number --minutes "$minutes" 1 1440
[[ -n $build ]] || die "--build needs a directory"
nvcc=${nvcc:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
lowest=(nice -n 19) code=0 ptx=$build/ptx
if [[ -n $cuda12 ]]; then
  ptx=$build/ptx-cuda12
  [[ -d $cuda12/nvidia/cuda_nvrtc ]] || die "no compiler of CUDA 12: tools/gate cuda12 downloads it"
else
  [[ -x $nvcc ]] || die "no nvcc: the PTX is what it makes"
fi
configure_host_build "$build"
mkdir -p "$ptx"
for name in collect resident resident_pointer resident_switch optim; do
  [[ -n $(find kernels runtime/core -newer "$ptx/$name.ptx" -name '*.h' -o -newer "$ptx/$name.ptx" -name '*.cu' 2>&1) ]] || continue
  if [[ -n $cuda12 ]]; then
    "${lowest[@]}" python3 tools/gates/nvrtc.py "$cuda12" "kernels/gpu/$name.cu" compute_90 "$ptx/$name.ptx"
  else
    "${lowest[@]}" "$nvcc" -ptx -std=c++20 -arch=compute_90 --fmad=false --expt-relaxed-constexpr -I. \
      "kernels/gpu/$name.cu" -o "$ptx/$name.ptx"
  fi || die "kernels/gpu/$name.cu cannot be compiled"
done
"${lowest[@]}" cmake --build "$build" -j 2 --target ptx_kernels test_ptx
"${lowest[@]}" timeout -k 10 120 "$build/bin/test_ptx" --gtest_brief=1 || code=1
end=$((SECONDS + minutes * 60))
: >"$ptx/log"
for ((seed = 1; SECONDS < end || seed == 1; ++seed)); do
  OURO_PTX=$ptx OURO_PTX_FIRST=$seed "${lowest[@]}" timeout -k 10 1800 "$build/bin/ptx_kernels" --gtest_brief=1 2>&1 |
    tee -a "$ptx/log" | cut -c 1-200 || { code=1; printf 'seed %d\n' "$seed"; break; }
done
sed -n 's/^\([0-9]*\) kernels, \([0-9]*\) of \([0-9]*\) planted faults found, \([0-9]*\) instructions,.*/\1 \2 \3 \4/p' "$ptx/log" |
  awk '{ k = $1; f = $2; p = $3; n += $4; ++runs }
    END { printf "%d runs of %d kernels, %d of %d planted faults found in the last, %.0f instructions\n", runs, k, f, p, n }'
exit $code
