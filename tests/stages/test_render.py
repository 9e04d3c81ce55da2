"""Drawing pages: the size is bounded before anything is drawn."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch_flows.stages.files import SourceFailure
from rayorch_flows.stages.pdf import Render
from rayorch_flows.stages.pdf.pdfium import scale_within
from tests.corpus import pdfs
from tests.stages.helpers import failure, pages_of, present, write


def test_grey_and_colour(tmp_path: Path) -> None:
    refs = pages_of(write(tmp_path, pdfs.good(1)))
    grey = present(Render(dpi=72).run(refs)[0])
    color = present(Render(dpi=72, color=True).run(refs)[0])
    assert grey.pixels.shape == (842, 595)
    assert color.pixels.shape == (842, 595, 3)
    assert grey.pixels.dtype == np.uint8
    assert grey.pixels.flags.c_contiguous
    assert int(grey.pixels.min()) < 64, "the text is drawn"
    assert int(grey.pixels.max()) == 255, "on white"
    assert grey.dpi == pytest.approx(72)


def test_a_page_as_big_as_a_wall_is_drawn_small(tmp_path: Path) -> None:
    image = present(Render().run(pages_of(write(tmp_path, pdfs.huge_page())))[0])
    assert image.pixels.size <= 16_100_000
    assert image.dpi < 2


def test_a_ribbon_keeps_to_the_longest_side(tmp_path: Path) -> None:
    image = present(Render(max_side=8_000).run(pages_of(write(tmp_path, pdfs.ribbon())))[0])
    assert max(image.pixels.shape) <= 8_000
    assert min(image.pixels.shape) >= 1


def test_a_picture_that_unpacks_to_gigabytes_is_refused_undrawn(tmp_path: Path) -> None:
    lost = failure(Render().run(pages_of(write(tmp_path, pdfs.image_bomb())))[0])
    assert lost.kind == "too_large"
    assert "3,600,000,000 pixels" in lost.cause


def test_a_missing_page_fails_alone(tmp_path: Path) -> None:
    images = Render(dpi=50).run(pages_of(write(tmp_path, pdfs.missing_page())))
    assert failure(images[1]).kind == "corrupt"
    assert present(images[0]).pixels.shape == present(images[2]).pixels.shape


def test_a_turned_page_is_drawn_as_it_is_read(tmp_path: Path) -> None:
    image = present(Render(dpi=72).run(pages_of(write(tmp_path, pdfs.rotated(90))))[0])
    assert image.pixels.shape == (595, 842)


@given(
    st.floats(0.01, 1e7),
    st.floats(0.01, 1e7),
    st.floats(10, 1200),
    st.integers(1_000, 10**8),
    st.integers(100, 30_000),
)
def test_no_page_size_breaks_the_limits(w: float, h: float, dpi: float, max_pixels: int, max_side: int) -> None:
    scale = scale_within((w, h), dpi, max_pixels, max_side)
    assert 0 < scale <= dpi / 72 * (1 + 1e-9)
    assert w * scale * h * scale <= max_pixels * (1 + 1e-6)
    assert max(w, h) * scale <= max_side * (1 + 1e-6)


@pytest.mark.parametrize("size", [(0.0, 842.0), (595.0, -1.0), (math.nan, 5.0), (math.inf, 5.0)])
def test_a_page_without_area_is_corrupt(size: tuple[float, float]) -> None:
    with pytest.raises(SourceFailure) as caught:
        scale_within(size, 200, 10**6, 10**4)
    assert caught.value.kind == "corrupt"
