"""Runs GGUF models on llama.cpp: contexts, slots, batches, sampling, chat rendering. Knows no HTTP."""
