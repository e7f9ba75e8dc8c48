#!/usr/bin/env bash
# Runs the fault matrix (tests/system/faults). Called by tools/gate faults; see its --help.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

minutes=60 build=build only=.
while (($#)); do
  case $1 in
    --minutes) minutes=${2:-}; shift 2 || die "--minutes needs a number" ;;
    --only) only=${2:-}; shift 2 || die "--only needs a pattern" ;;
    --build) build=${2:-}; shift 2 || die "--build needs a directory" ;;
    *) die "unknown option $1; see --help" ;;
  esac
done
check_number --minutes "$minutes" 1 1440
[[ -n $only && -n $build ]] || die "--only needs a pattern, --build a directory"
configure_host_build "$build"
cmake --build "$build" -j 2 --target faults_rank faults_rank_major faults_rank_minor hosts_rank ouro-run tapnet
PYTHONDONTWRITEBYTECODE=1 timeout -k 30 $((minutes * 60 + 600)) python3 tests/system/faults/matrix.py "$build/bin" \
  --minutes "$minutes" --only "$only" --markdown "$build/faults.md"
