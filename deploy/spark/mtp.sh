#!/bin/sh
# E4B, MTP, k=3, on dgx-spark, vLLM 0.33.0
# weights     14.00 GiB  7.52 B parameters, bf16
# towers       0.84 GiB  vision and audio, bf16
# drafter      0.15 GiB  the paired assistant, bf16
# KV cache     4.62 GiB  16 x 16384 tokens at 276 MiB, bf16
# one step     2.70 GiB  8192 tokens, 256 sequences a step (derived)
# graphs       1.30 GiB  CUDA graphs, as measured with E4B
# runtime      0.50 GiB  CUDA context, allocator: an allowance
# sum         24.11 GiB  of 47.68 GiB that vLLM may use: 23.57 GiB spare for more cache
# note: no table by batch size: drafting pays up to 256 sequences by the speed profile
# note: min_p and logit_bias are refused with a drafter: the gateway sends these to plain
export FLASHINFER_ENABLE_SAMPLING=1
exec vllm serve google/gemma-4-E4B-it \
  --served-model-name gemma-4-e4b \
  --host 0.0.0.0 \
  --port 8000 \
  --dtype bfloat16 \
  --max-model-len 16384 \
  --gpu-memory-utilization 0.4 \
  --max-num-seqs 256 \
  --max-num-batched-tokens 8192 \
  --enable-prefix-caching \
  --reasoning-parser gemma4 \
  --tool-call-parser gemma4 \
  --enable-auto-tool-choice \
  --enable-prompt-tokens-details \
  --enable-per-request-metrics \
  --shutdown-timeout 30 \
  --per-request-spec-decode-metrics summary \
  --speculative-config '{"method":"mtp","model":"google/gemma-4-E4B-it-assistant","num_speculative_tokens":3}'
