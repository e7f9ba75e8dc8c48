# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step nvls.

# Runs the collectives that a switch between the GPUs reduces and multicasts, over all GPUs that have multicast objects, and
# compares the time of an all_reduce with that of the kernels by pointer.
nvls_step() {
  local n kind code ran=0 passed=0 wrong='' why='' one good by
  local -A us=([nvls]='' [pointer]='')
  n=$(grep -c '\bmulticast\b' "$out/logs/gpus.txt")
  if ((n < 2)); then not_run "nvls" "$n GPUs with multicast objects"; return; fi
  for kind in all_reduce reduce_scatter all_gather broadcast; do
    code=0
    attempt "nvls-$kind" 40 env OURO_ALGO=nvls OURO_NUMERICS=fast "$here/bin/ouro-perf" "$kind" --device cuda \
      --ranks "$n" -b 4 -e 64M -f 16 -d float -o sum -n 5 -w 1 -c 1 -T 20 --csv || code=$?
    out_of_time $code "nvls" && return
    read -r one good < <(right_rows "$out/logs/nvls-$kind.log")
    ran=$((ran + one)) passed=$((passed + good))
    ((code == 0 && one > 0 && one == good)) || blame "nvls-$kind"
  done
  row "nvls, $n GPUs" "$ran" "$passed" 0 "${wrong:-what ran is right}$why" "all"
  passed=0
  for by in nvls pointer; do
    code=0
    attempt "nvls-time-$by" 40 env OURO_ALGO="${by/pointer/}" OURO_NUMERICS=fast "$here/bin/ouro-perf" all_reduce \
      --device cuda --ranks "$n" -b 64M -e 64M -d float -o sum -n 20 -w 5 -c 1 -z 3 -T 20 --csv || code=$?
    out_of_time $code "nvls, times" && return
    ((code == 0)) && passed=$((passed + 1)) || failed=1
    us[$by]=$(awk -F, '$1 ~ /^[0-9]+$/ { print $6 }' "$out/logs/nvls-time-$by.log" | tail -1)
  done
  row "all_reduce 64M, $n GPUs" 2 $passed 0 "nvls ${us[nvls]:-?} us, else ${us[pointer]:-?} us" "-"
}
