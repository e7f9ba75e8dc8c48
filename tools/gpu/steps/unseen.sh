# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step unseen; the step tests runs all other tests.

# Tests of test_gpu that no card has run, as bench/results/gpu-status.md lists them.
readonly UNSEEN='*Registered*:*Registrations*:*Released*:*Sharing*:*StandIns*:*TimedGpu*:*WordsKill*:*GpuCaptures*:*GpuPointers*:*StagedPieces*:*Hierarchy*:*GpuPart*'

unseen_step() {
  if ! program test_gpu; then not_run "test_gpu" "not in the bundle"; return; fi
  local filter=$UNSEEN
  [[ $quick == no ]] || filter='Registrations.*'
  tests_of test_gpu "$filter" "test_gpu unseen"
}
