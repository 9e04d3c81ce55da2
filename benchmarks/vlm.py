"""A vision-language model with random weights: a small picture in, sixteen tokens out, the same for every system."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks import ledger, workloads
from benchmarks.functions import WARM_UP, Page
from benchmarks.ledger import Ledger

BATCH = 32
TOKENS = 16


@dataclass(frozen=True)
class Size:
    """Widths and depths of the two halves, and the side of a picture in pixels."""

    width: int
    vision_layers: int
    language_layers: int
    heads: int
    pixels: int
    vocabulary: int


TINY = Size(96, 3, 3, 4, 64, 512)
REAL = Size(2048, 24, 24, 16, 448, 50_000)
"""2.6 billion parameters: the size of the models that read pages today."""


def documents(scale: float) -> workloads.Documents:
    return workloads.log_normal(int(400 / scale))


class Vlm:
    """Vision transformer and language model. In double precision a batch's company changes no token."""

    def __init__(self, size: Size = TINY, device: str = "cpu", dtype: str = "float64") -> None:
        torch: Any = import_module("torch")
        transformers: Any = import_module("transformers")
        torch.set_num_threads(1)
        torch.manual_seed(0)
        vision = transformers.ViTConfig(
            hidden_size=size.width,
            num_hidden_layers=size.vision_layers,
            num_attention_heads=size.heads,
            intermediate_size=2 * size.width,
            image_size=size.pixels,
            patch_size=16 if size is TINY else 14,
        )
        language = transformers.GPT2Config(
            vocab_size=size.vocabulary,
            n_positions=64,
            n_embd=size.width,
            n_layer=size.language_layers,
            n_head=size.heads,
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=0,
        )
        config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, language)
        config.decoder_start_token_id = 1
        config.pad_token_id = 0
        self.torch = torch
        self.device = device
        self.pixels = size.pixels
        self.dtype = getattr(torch, dtype)
        with torch.device(device):
            self.model = transformers.VisionEncoderDecoderModel(config=config).to(device, self.dtype).eval()
        self.ledger = Ledger("page")

    def run(self, pages: list[Page]) -> list[list[int]]:
        start = time.time()
        pictures = self.torch.from_numpy(np.stack([picture(*page, self.pixels) for page in pages]))
        tokens = self.read(pictures)
        real = sum(document != WARM_UP for document, _ in pages)
        if real:
            self.ledger.write(start, real)
        else:
            ledger.report_up()
        return tokens

    def read(self, pictures: Any) -> list[list[int]]:
        """Greedy decoding of a batch of pictures."""
        with self.torch.inference_mode():
            tokens = self.model.generate(
                pixel_values=pictures.to(self.device, self.dtype),
                max_new_tokens=TOKENS,
                min_new_tokens=TOKENS,
                do_sample=False,
            )
        return tokens[:, 1:].tolist()


def picture(document: int, ordinal: int, pixels: int) -> Any:
    """The picture of a page, the same each time."""
    draw = np.random.default_rng((document + 2) * 1_000 + ordinal)
    return draw.standard_normal((3, pixels, pixels), dtype=np.float32)
