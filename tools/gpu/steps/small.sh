# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step small.

# The same calls on two paths: the fewest pieces of work decide. The logs have the calls of the driver, by kind.
small_step() {
  local n path z sizes=(-b 8 -e 128K -f 128) counts=(2 4 8)
  [[ $quick == no ]] || counts=(2)
  for n in "${counts[@]}"; do
    for path in leader resident; do
      for z in 3 2; do
        perf "all_reduce, $n threads, $path, $(manner $z)" "small-$n-$path-$z" OURO_GPU_PATH=$path OURO_GPU_TRACE=1 \
          ouro-perf all_reduce -t "$n" "${sizes[@]}" "${often[@]}" -z $z -c 1
      done
    done
  done
}
manner() { if (($1 == 3)); then echo "a wait each"; else echo "in a row"; fi; }
