#!/bin/sh
# Checks that every symbol that one instruction set's unit defines for the linker has the name of that set
# in it: an inline function without it could replace its namesake in units for older processors. Usage:
# isa_symbols.sh NM OBJECT...
nm=$1
shift
checked=0
for object in "$@"; do
  case $object in
    *host_loops_avx512* | *host_optim_avx512*) set_name=avx512 ;;
    *host_loops_avx2* | *host_optim_avx2*) set_name=avx2 ;;
    *) continue ;;
  esac
  checked=$((checked + 1))
  stray=$("$nm" --defined-only --extern-only "$object" | awk '{print $NF}' | grep '^_Z' | grep -v "$set_name")
  if [ -n "$stray" ]; then
    echo "$object defines, compiled for $set_name:"
    echo "$stray"
    exit 1
  fi
done
[ $checked -gt 0 ] || { echo "SKIP: this processor has no special instruction set that a unit is for"; exit 77; }
echo "$checked units are clean"
