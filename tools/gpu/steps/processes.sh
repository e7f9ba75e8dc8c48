# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step processes.

# Mappings, naps and changes of the process that the device serves, as far as they can be told apart: -w 200 lets each process
# lead, so that it has mapped the buffers of the others; registered buffers are mapped before.
processes_step() {
  local n r counts=(2 4 8) small=(-b 8 -e 8 -n 500 -w 200) large=(-b 16M -e 16M -n 200 -w 200)
  [[ $quick == no ]] || counts=(2) small=(-b 8 -e 8 -n 20 -w 4) large=(-b 1M -e 1M -n 20 -w 4)
  for n in "${counts[@]}"; do
    for r in 0 1; do
      local kind=private
      ((r == 0)) || kind=registered
      perf "all_reduce, $n processes, $kind, a wait each" "processes-$n-$kind-small" ouro-perf all_reduce --ranks "$n" \
        "${small[@]}" -R $r -z 3 -c 1
      perf "all_reduce, $n processes, $kind, in a row" "processes-$n-$kind-large" ouro-perf all_reduce --ranks "$n" \
        "${large[@]}" -R $r -z 2 -c 1
    done
  done
}
