# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step large.

# In a row the host or the kernel decides, in a graph the kernel alone.
large_step() {
  local n sizes=(-b 1M -e 16M -f 16) counts=(2 4 8)
  [[ $quick == no ]] || counts=(2) sizes=(-b 1M -e 1M)
  for n in "${counts[@]}"; do
    perf "all_reduce, $n threads, in a row" "large-$n-row" ouro-perf all_reduce -t "$n" "${sizes[@]}" "${often[@]}" -z 2 -c 1
    perf "all_reduce, $n threads, in a graph" "large-$n-graph" ouro-perf all_reduce -t "$n" "${sizes[@]}" -n 50 -w 20 -G 20 -c 1
  done
}
