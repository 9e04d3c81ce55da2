"""Ours and the peers, side by side: the same input, the same model, the same actors, every result checked."""
