"""Broken and awkward inputs, built in code."""
