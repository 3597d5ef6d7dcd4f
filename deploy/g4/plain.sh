#!/bin/sh
# E4B, plain, on 1g.24gb, vLLM 0.33.0
# weights     14.00 GiB  7.52 B parameters, bf16
# towers       0.84 GiB  vision and audio, bf16
# KV cache     2.47 GiB  8 x 16384 tokens at 276 MiB, bf16
# one step     0.95 GiB  8192 tokens, 128 sequences a step (derived)
# graphs       0.30 GiB  CUDA graphs, as measured with E4B
# runtime      0.50 GiB  CUDA context, allocator: an allowance
# sum         19.06 GiB  of 20.81 GiB that vLLM may use: 1.75 GiB spare for more cache
# note: one slice for each container, and no MIG UUID in CUDA_VISIBLE_DEVICES
export FLASHINFER_ENABLE_SAMPLING=1
exec vllm serve google/gemma-4-E4B-it \
  --served-model-name gemma-4-e4b \
  --host 0.0.0.0 \
  --port 8000 \
  --dtype bfloat16 \
  --max-model-len 16384 \
  --gpu-memory-utilization 0.9 \
  --max-num-seqs 128 \
  --max-num-batched-tokens 8192 \
  --enable-prefix-caching \
  --reasoning-parser gemma4 \
  --tool-call-parser gemma4 \
  --enable-auto-tool-choice \
  --enable-prompt-tokens-details \
  --enable-per-request-metrics \
  --shutdown-timeout 30
