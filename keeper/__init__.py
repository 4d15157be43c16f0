"""Holds an agent's long history behind a small window. Knows messages and a complete() it is handed; no HTTP, no token state."""
