"""SamplingParams to a llama sampler chain."""

from engine.sampling import SamplingParams

__all__ = ["SamplingParams"]
