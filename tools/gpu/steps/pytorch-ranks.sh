# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step pytorch-ranks.

# PyTorch's collectives, messages, graphs and training with several ranks on one GPU, over ouro's libnccl.so.2 in place of
# NVIDIA's, and over the backend ouro. All compare with gloo on the host.
pytorch_ranks_step() {
  if [[ -n ${OURO_FAKE_GPUS:-} ]]; then not_run "PyTorch's ranks" "it knows no fake GPU"; return; fi
  local there='import sys, torch; sys.exit(0 if torch.cuda.is_available() else "PyTorch sees no GPU")' code=0 one
  attempt torch-there 40 env LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" python3 -c "$there" || code=$?
  if ((code != 0)); then not_run "PyTorch's ranks" "$(tail -1 "$out/logs/torch-there.log")"; return; fi
  # Python has the C++ library of its own machine.
  mkdir -p "$out/python-lib"
  for one in "$here"/lib/*; do
    [[ $one =~ lib(stdc\+\+|gcc_s)\.so ]] || ln -sf "$one" "$out/python-lib/"
  done
  for one in nccl ouro; do
    torch_ranks $one groups 2
    torch_ranks $one groups 4
    torch_ranks $one graph 2
    torch_ranks $one training 2
  done
  torch_ranks ouro registered 2
  torch_ranks ouro segments 2 PYTORCH_ALLOC_CONF=expandable_segments:True
}

torch_ranks() { # CARRIER PROGRAM RANKS [VARIABLE=VALUE]...
  local name="PyTorch over $1: $2, $3 ranks" log=torch-$1-$2-$3 code=0 store
  local variables=(LD_LIBRARY_PATH="$out/python-lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" PYTHONPATH="$here/python" OURO_HOME="$here"
    BACKEND="$1" OMP_NUM_THREADS=1 OURO_DEADLINE=40 GLOO_SOCKET_IFNAME=lo "${@:4}")
  [[ $1 == ouro ]] || variables+=(LD_PRELOAD="$here/lib/libnccl.so.2")
  store=$(mktemp -d)
  # shellcheck disable=SC2016
  attempt "$log" 60 bash -c 'ranks=$1 store=$2 program=$3 worst=0 all=()
    shift 3
    for ((rank = 0; rank < ranks; rank++)); do
      env "$@" python3 "$program" --rank "$rank" "$ranks" "$store" & all+=($!)
    done
    for one in "${all[@]}"; do wait "$one" || worst=$?; done
    exit $worst' ranks "$3" "$store" "$here/gpu/ranks/torch_$2.py" "${variables[@]}" || code=$?
  rm -rf "$store"
  out_of_time $code "$name" && return
  if ((code == 0)) && ! grep -q '^SKIP' "$out/logs/$log.log"; then row "$name" 1 1 0 "$(tail -1 "$out/logs/$log.log")" "all"
  elif ((code == 0)); then not_run "$name" "it skipped"
  else failed=1; row "$name" 1 0 0 "$(reason $code "$log")" "all"; fi
}
