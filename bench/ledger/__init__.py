"""The embedded model's making: episodes, tokenizer, network, training, export and evaluation. Needs the extra `train`."""
