# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step collectives.

readonly KINDS=(all_reduce reduce reduce_scatter all_gather broadcast gather scatter alltoall sendrecv)

# collectives threads|processes RANKS
collectives() {
  local how=$1 n=$2 kind code name ran=0 passed=0 skipped=0 wrong='' why='' what ranks=(-t "$2")
  [[ $how == threads ]] || ranks=(--ranks "$n")
  for kind in "${KINDS[@]}"; do
    if (($(remaining) < 5)); then skipped=$((skipped + 1)); continue; fi
    what=(-b 4 -e 256K -f 256 -d all -o all)
    [[ $quick == no ]] || what=(-b 1K -e 1K -d float)
    [[ $kind =~ ^(reduce|broadcast|gather|scatter)$ ]] && ((n <= 3)) && what+=(-r all)
    name=$kind-$how-$n
    attempt "$name" 40 "$here/bin/ouro-perf" "$kind" --device cuda "${ranks[@]}" "${what[@]}" -n 1 -w 0 -c 1 -T 20 --csv
    code=$?
    local one good
    read -r one good < <(right_rows "$out/logs/$name.log")
    ran=$((ran + one)) passed=$((passed + good))
    ((code == 0 && one > 0 && one == good)) || blame "$name"
  done
  ((skipped == 0)) || why+="; $skipped collectives skipped: no time left"
  row "$n ranks as $how" "$ran" "$passed" "$skipped" "${wrong:-what ran is right, bit for bit}$why" "all"
}

# Compares every collective, type and operation with the host.
collectives_step() {
  local n counts=(1 2 3 4 8)
  [[ $quick == no ]] || counts=(1 2 4)
  for n in "${counts[@]}"; do collectives threads "$n"; done
  for n in "${counts[@]:1}"; do collectives processes "$n"; done
}
