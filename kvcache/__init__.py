"""Keeps attention blocks and recurrent checkpoints in RAM and on disk. Knows tokens and bytes, no llama, no HTTP, no messages."""
