"""A random-weight Mamba GGUF: the one kind of model, recurrent state alone, that neither the catalogue nor PyPI has."""

from pathlib import Path

import gguf
import numpy as np

from engine.vocabulary import END_OF_TURN, make_vocabulary

EMBD, LAYERS, STATE, RANK, CONV, VOCAB = 128, 3, 16, 8, 4, 512


def write_mamba(path: Path) -> None:
    """Tensor names and shapes are those of llama.cpp's `mamba` (which wants inner = 2 x embd)."""
    inner, rng, vocabulary = 2 * EMBD, np.random.default_rng(0), make_vocabulary(VOCAB)
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_context_length(4096)
    writer.add_embedding_length(EMBD)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(LAYERS)
    writer.add_ssm_conv_kernel(CONV)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(RANK)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types(list(vocabulary.types))
    writer.add_token_merges(list(vocabulary.merges))
    writer.add_eos_token_id(vocabulary.ids(END_OF_TURN)[0])
    writer.add_add_bos_token(False)

    def noise(name: str, *shape: int) -> None:
        writer.add_tensor(name, rng.standard_normal(shape, dtype=np.float32) * np.float32(shape[-1] ** -0.5))

    noise("token_embd.weight", VOCAB, EMBD)
    noise("output.weight", VOCAB, EMBD)
    writer.add_tensor("output_norm.weight", np.ones(EMBD, np.float32))
    for layer in range(LAYERS):
        part = f"blk.{layer}."
        writer.add_tensor(part + "attn_norm.weight", np.ones(EMBD, np.float32))
        noise(part + "ssm_in.weight", 2 * inner, EMBD)
        noise(part + "ssm_conv1d.weight", inner, CONV)
        noise(part + "ssm_conv1d.bias", inner)
        noise(part + "ssm_x.weight", RANK + 2 * STATE, inner)
        noise(part + "ssm_dt.weight", inner, RANK)
        writer.add_tensor(part + "ssm_dt.bias", rng.uniform(-4, -1, inner).astype(np.float32))
        writer.add_tensor(part + "ssm_a", -np.exp(rng.uniform(-2, 1, (inner, STATE))).astype(np.float32))
        writer.add_tensor(part + "ssm_d", np.ones(inner, np.float32))
        noise(part + "ssm_out.weight", EMBD, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
