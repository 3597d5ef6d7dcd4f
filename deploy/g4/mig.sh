#!/bin/sh
# Prints how to cut a card into four MIG slices and which device ids to write into .env. It only asks; nothing is
# changed: run the printed commands yourself, as root, with no process on the card.
#   sh deploy/g4/mig.sh [CARD]        CARD: the card's index in `nvidia-smi -L`, 0 by default
set -eu
card=${1-0}
case $card in
  '' | *[!0-9]*) echo "usage: sh deploy/g4/mig.sh [CARD], CARD a number" >&2; exit 2 ;;
esac
command -v nvidia-smi >/dev/null ||
  { echo "nvidia-smi is not here: run this on the machine with the card, with NVIDIA's driver" >&2; exit 1; }
state=$(nvidia-smi -i "$card" --query-gpu=name,mig.mode.current --format=csv,noheader) ||
  { echo "no card $card; nvidia-smi -L lists them" >&2; exit 1; }
echo "# card $card: $state"

# The MIG devices below this card's line, as "PROFILE UUID".
found=$(nvidia-smi -L | awk -v card="$card" '
  /^GPU / { here = ($2 == card ":") }
  here && $1 == "MIG" { uuid = $NF; sub(/\)$/, "", uuid); print $2, uuid }')

case $state in
  *,*Enabled*) ;;
  *)
    echo "# MIG is off. It needs driver R575 or newer, and on a workstation card the compute display mode."
    echo "sudo nvidia-smi -i $card -mig 1"
    ;;
esac
if [ -z "$found" ]; then
  echo "# Four slices of a quarter each (on RTX PRO 6000 Blackwell); then run this again for their ids."
  echo "sudo nvidia-smi mig -i $card -cgi 1g.24gb,1g.24gb,1g.24gb,1g.24gb -C"
  exit 0
fi
echo "# To start over:  sudo nvidia-smi mig -i $card -dci && sudo nvidia-smi mig -i $card -dgi"
echo "# For .env. One id for each container, which sees that slice alone; never in CUDA_VISIBLE_DEVICES."
echo "$found" | awk '{ printf "G4_SLICE_%d=%s    # %s\n", NR - 1, $2, $1 }'
quarters=$(echo "$found" | grep -c '^1g\.24gb ') || true
[ "$quarters" -ge 4 ] || echo "# The g4 profile wants four of 1g.24gb; there are $quarters."
