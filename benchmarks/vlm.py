"""A vision-language model with random weights: a small picture in, sixteen tokens out, the same for every system."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks import workloads
from benchmarks.functions import WARM_UP, Page
from benchmarks.ledger import Ledger

BATCH = 32
TOKENS = 16
PIXELS = 64


def documents(scale: float) -> workloads.Documents:
    return workloads.log_normal(int(400 / scale))


class Vlm:
    """Vision transformer and language model, in double precision, so that a batch's company changes no token."""

    def __init__(self) -> None:
        torch: Any = import_module("torch")
        transformers: Any = import_module("transformers")
        torch.set_num_threads(1)
        torch.manual_seed(0)
        vision = transformers.ViTConfig(
            hidden_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=192,
            image_size=PIXELS,
            patch_size=16,
        )
        language = transformers.GPT2Config(
            vocab_size=512,
            n_positions=64,
            n_embd=96,
            n_layer=3,
            n_head=4,
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=0,
        )
        config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, language)
        config.decoder_start_token_id = 1
        config.pad_token_id = 0
        self.torch = torch
        self.model = transformers.VisionEncoderDecoderModel(config=config).double().eval()
        self.ledger = Ledger("page")

    def run(self, pages: list[Page]) -> list[list[int]]:
        start = time.time()
        pictures = np.stack([_picture(*page) for page in pages])
        with self.torch.inference_mode():
            tokens = self.model.generate(
                pixel_values=self.torch.from_numpy(pictures),
                max_new_tokens=TOKENS,
                min_new_tokens=TOKENS,
                do_sample=False,
            )
        real = sum(document != WARM_UP for document, _ in pages)
        if real:
            self.ledger.write(start, real)
        return tokens[:, 1:].tolist()


def _picture(document: int, ordinal: int) -> Any:
    draw = np.random.default_rng((document + 2) * 1_000 + ordinal)
    return draw.standard_normal((3, PIXELS, PIXELS))
