"""Functions that recognise the text of a drawn page."""

from rayorch_flows.stages.ocr.rapidocr import RapidOcr
from rayorch_flows.stages.ocr.tesseract import TesseractOcr, tessdata_folder

__all__ = ["RapidOcr", "TesseractOcr", "tessdata_folder"]
