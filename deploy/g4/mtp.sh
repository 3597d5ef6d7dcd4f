#!/bin/sh
# E4B, MTP, k=2, on 1g.24gb, vLLM 0.33.0
# weights     14.00 GiB  7.52 B parameters, bf16
# towers       0.84 GiB  vision and audio, bf16
# drafter      0.15 GiB  the paired assistant, bf16
# KV cache     2.47 GiB  8 x 16384 tokens at 276 MiB, bf16
# one step     1.45 GiB  8192 tokens, 128 sequences a step (derived)
# graphs       1.30 GiB  CUDA graphs, as measured with E4B
# runtime      0.50 GiB  CUDA context, allocator: an allowance
# sum         20.71 GiB  of 20.81 GiB that vLLM may use: 0.10 GiB spare for more cache
# note: no table by batch size: drafting pays up to 128 sequences by the speed profile
# note: min_p and logit_bias are refused with a drafter: the gateway sends these to plain
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
  --shutdown-timeout 30 \
  --per-request-spec-decode-metrics summary \
  --speculative-config '{"method":"mtp","model":"google/gemma-4-E4B-it-assistant","num_speculative_tokens":2}'
