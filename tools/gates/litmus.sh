#!/usr/bin/env bash
# Runs the litmus tests of the GPU protocols (docs/design/ptx.md). Called by tools/gate litmus; see its --help.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build=build
while (($#)); do
  case $1 in
    --build) build=${2:-}; shift 2 || die "--build needs a directory" ;;
    *) die "unknown option $1; see --help" ;;
  esac
done
[[ -n $build ]] || die "--build needs a directory"
configure_host_build "$build"
nice -n 19 cmake --build "$build" -j 2 --target ptx_litmus >"$build/litmus.log" 2>&1 ||
  { tail -20 "$build/litmus.log" >&2; die "cannot build ptx_litmus"; }
nice -n 19 timeout -k 10 600 "$build/bin/ptx_litmus"
